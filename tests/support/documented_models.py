"""`python -m tests.support.documented_models PAGE`: runs a page's Python in a folder where its hub ids are tiny models.

They are of the classes that the page loads, with enough visual tokens for its budgets. Needs an empty working folder,
and prints as JSON what the last record of each block says. Videos need torchvision, for which there is a stand-in.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from tests.support import torchvision_stand_in as stand_in  # noqa: F401

import numpy as np
import transformers as t
from PIL import Image

from tests.support import onevision
from tests.support.families.case import PATCH, clip_tower, siglip_tower
from tests.support.families.llava import LlavaNext, VideoLlava
from tests.support.families.others import InternVL
from tests.support.families.qwen import Qwen25VL
from tests.support.family_checkpoints import TEMPLATE, processor, tokenizer
from tests.support.llava_checkpoint import save_clip, save_llava
from tests.support.without_cuda import cuda_or_cpu
from tests.test_docs import run_blocks

NEXT, LLAVA = "llava-hf/llava-v1.6-vicuna-7b-hf", "llava-hf/llava-1.5-7b-hf"
ONEVISION, VIDEO_LLAVA = "llava-hf/llava-onevision-qwen2-7b-ov-hf", "LanguageBind/Video-LLaVA-7B-hf"
INTERNVL, QWEN = "OpenGVLab/InternVL3-8B-hf", "Qwen/Qwen2.5-VL-7B-Instruct"
SIGLIP, CLIP = "google/siglip-so400m-patch14-384", "openai/clip-vit-large-patch14-336"
CLIP_PROCESSOR = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}


def _words():
    return {"tokenizer": tokenizer(), "chat_template": TEMPLATE.replace("MARK", "{{ '<' + part['type'] + '> ' }}")}


def _square(side):
    return {"size": {"shortest_edge": side * PATCH}, "crop_size": {"height": side * PATCH, "width": side * PATCH}}


def _next():
    """Tiles of 9 x 9 tokens."""
    side = 9 * PATCH
    tiles = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    case = LlavaNext()
    config = case.config()
    config.vision_config, config.image_grid_pinpoints = clip_tower(side), tiles
    images = t.LlavaNextImageProcessor(**_square(9), image_grid_pinpoints=tiles)
    return case, config, t.LlavaNextProcessor(image_processor=images, **CLIP_PROCESSOR, **_words())


def _video_llava():
    """Frames of 6 x 6 tokens and a class token."""
    case = VideoLlava()
    config = case.config()
    config.vision_config = clip_tower(6 * PATCH)
    images, videos = t.VideoLlavaImageProcessor(**_square(6)), t.VideoLlavaVideoProcessor(**_square(6))
    made = t.VideoLlavaProcessor(image_processor=images, video_processor=videos, **CLIP_PROCESSOR, **_words())
    return case, config, made


def _internvl():
    """Tiles of 12 x 12 tokens."""
    case, size = InternVL(), {"height": 192, "width": 192}
    config = case.config()
    config.vision_config.image_size, config.image_seq_length = [192, 192], 144
    images = t.GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=1)
    videos = t.InternVLVideoProcessor(size=size)
    made = t.InternVLProcessor(image_processor=images, video_processor=videos, image_seq_length=144, **_words())
    return case, config, made


def _qwen():
    case = Qwen25VL()
    return case, case.config(), processor("qwen2_5_vl")


def _save_siglip(folder):
    """The SigLIP whose tower is that of the tiny LLaVA-OneVision."""
    words = tokenizer()
    text = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"vocab_size": len(words), "max_position_embeddings": 16, "projection_size": 24}
    vision = siglip_tower(onevision.Onevision.side * PATCH).to_dict() | {"vision_use_head": True}
    t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    words.save_pretrained(folder)


def save_models():
    """Save all that docs/models.md loads, under its hub ids."""
    for name, make in {NEXT: _next, VIDEO_LLAVA: _video_llava, INTERNVL: _internvl, QWEN: _qwen}.items():
        case, config, made = make()
        case.config = lambda config=config: config
        case.model().save_pretrained(name)
        made.save_pretrained(name)
    onevision.save(ONEVISION)
    _save_siglip(SIGLIP)
    save_llava(LLAVA, side=24)
    save_clip(CLIP, side=24)


def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8))


def inputs_for(name):
    """What the processor of a model makes of a question about an image, or about a video of eight frames."""
    made = t.AutoProcessor.from_pretrained(name)
    kind = "video" if name in (ONEVISION, VIDEO_LLAVA) else "image"
    turn = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "what is it ?"}]}
    prompt = made.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
    shown = {"images": picture()} if kind == "image" else {"videos": [np.stack([np.asarray(picture())] * 8)]}
    if kind == "video":
        shown["do_sample_frames"] = False
    return made(text=prompt, return_tensors="pt", **shown)


def main(page):
    save_models()
    names, found = {"__name__": "example", "image": picture()}, []

    def prepare(code):
        loaded = [name for name in (NEXT, LLAVA, ONEVISION, VIDEO_LLAVA, INTERNVL, QWEN) if name in code]
        if loaded:
            names["inputs"] = inputs_for(loaded[0])

    with cuda_or_cpu():
        for _ in run_blocks(page, names, before=prepare):
            record = names["pruner"].last
            found.append([record.before, record.after, list(record.structure), record.source, record.sign])
    print(json.dumps({"records": found, "answers": names["answers"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
