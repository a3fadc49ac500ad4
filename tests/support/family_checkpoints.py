"""Checkpoints of every family with its own processor, and videos asked about: run in a process with the stand-in.

`python -m tests.support.family_checkpoints FOLDER CLIP` saves them all under FOLDER, asks each that takes videos about
CLIP, and prints, as JSON, what the program said.
"""

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

if __name__ == "__main__":
    from tests.support import torchvision_stand_in as stand_in  # noqa: F401

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support import families
from tests.support.families.case import PATCH, VOCAB

QUESTION = "what is it ?"
SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<video>", "<open>", "<close>", "<unk>"]
WORDS = [*SPECIAL, "USER:", "ASSISTANT:", "what", "is", "it", "?"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% else %}MARK{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
TILES = [[32, 32], [32, 64], [64, 32], [64, 64]]
NAMES = ["llava_next", "llava_next_video", "llava_onevision", "video_llava", "internvl"]
NAMES += ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "vipllava"]
CASES = {case.name: case for case in families.CASES if case.name in NAMES}
VIDEOS = [name for name in CASES if name not in ("llava_next", "vipllava")]


def tokenizer():
    words = WORDS + [f"w{i}" for i in range(VOCAB - len(WORDS))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"image_token": "<image>", "context_image_token": "<image>", "video_token": "<video>"}
    for name in ("vision_start", "start_image"):
        names[f"{name}_token"] = "<open>"
    for name in ("vision_end", "end_image"):
        names[f"{name}_token"] = "<close>"
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, extra_special_tokens=names, **special)


def processor(name):
    import transformers as t

    case, words = CASES[name], tokenizer()
    visual = "{{ '<' + part['type'] + '>' }}"
    template = TEMPLATE.replace("MARK", f"<open>{visual}<close>" if name.startswith("qwen") else f"{visual} ")
    common = {"tokenizer": words, "chat_template": template}
    square = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    clip = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    if name == "llava_next":
        images = t.LlavaNextImageProcessor(**square, image_grid_pinpoints=TILES)
        return t.LlavaNextProcessor(image_processor=images, **clip, **common)
    if name == "llava_next_video":
        images = t.LlavaNextImageProcessor(**square, image_grid_pinpoints=TILES)
        videos = t.LlavaNextVideoVideoProcessor(**square)
        return t.LlavaNextVideoProcessor(image_processor=images, video_processor=videos, **clip, **common)
    if name == "llava_onevision":
        size = {"height": 24, "width": 24}
        images = t.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=case.config().image_grid_pinpoints)
        videos = t.LlavaOnevisionVideoProcessor(size=size)
        options = {"num_image_tokens": 9, "vision_feature_select_strategy": "full"}
        return t.LlavaOnevisionProcessor(image_processor=images, video_processor=videos, **options, **common)
    if name == "video_llava":
        images, videos = t.VideoLlavaImageProcessor(**square), t.VideoLlavaVideoProcessor(**square)
        return t.VideoLlavaProcessor(image_processor=images, video_processor=videos, **clip, **common)
    if name == "internvl":
        size = {"height": 48, "width": 48}
        images = t.GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=4)
        videos = t.InternVLVideoProcessor(size=size)
        return t.InternVLProcessor(image_processor=images, video_processor=videos, image_seq_length=9, **common)
    if name == "vipllava":
        return t.LlavaProcessor(image_processor=t.CLIPImageProcessor(**square), **clip, **common)
    sizes = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    sizes["size"] = {"shortest_edge": 256, "longest_edge": 2048}
    videos = t.Qwen3VLVideoProcessor if name == "qwen3_vl" else t.Qwen2VLVideoProcessor
    kinds = {"qwen2_vl": t.Qwen2VLProcessor, "qwen2_5_vl": t.Qwen2_5_VLProcessor, "qwen3_vl": t.Qwen3VLProcessor}
    images = t.Qwen2VLImageProcessor(**sizes)
    return kinds[name](image_processor=images, video_processor=videos(**sizes), **common)


def asked(*arguments):
    """The program's exit code, output and errors."""
    from vlprune.cli.app import main

    out, err = StringIO(), StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    from vlprune.show import picture

    folder, clip = Path(sys.argv[1]), sys.argv[2]
    picture.DPI = 70  # of which only the size is looked at
    for name, case in CASES.items():
        case.model().save_pretrained(folder / name)
        processor(name).save_pretrained(folder / name)
    said = {}
    for name in VIDEOS:
        ask = ("ask", clip, QUESTION, "--model", folder / name, "--frames", 4, "--max-new-tokens", 3)
        said[name] = [
            asked(*ask, "--keep", 3, "--json"),
            asked(*ask, "--keep", "2/frame", "--show", folder / f"{name}.png"),
        ]
    print(json.dumps(said))
