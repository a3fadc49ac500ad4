"""A tiny LLaVA saved as a checkpoint, with LLaVA-1.5's template and words, and images to ask about."""

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from vlprune.cli import main

WORDS = [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<image>",
    "USER:",
    "ASSISTANT:",
    "what",
    "color",
    "is",
    "the",
    "cat",
    "?",
    "how",
    "many",
    "dogs",
]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ part['text'] + ' ' }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def _vision(side):
    """A tower with side x side patches."""
    sizes = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2)
    return CLIPVisionConfig(**sizes, image_size=8 * side, patch_size=8)


def _processor(template, side=4):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, extra_special_tokens={"image_token": "<image>"}, padding_side="left", **special
    )
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 8 * side}, crop_size={"height": 8 * side, "width": 8 * side}
        ),
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )


def save_llava(folder, template=TEMPLATE, side=4):
    torch.manual_seed(0)
    text = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = LlavaConfig(vision_config=_vision(side), text_config=text, image_token_index=4, image_seq_length=side**2)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    _processor(template, side).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder with a LLaVA of 16 visual tokens."""
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def untemplated(tmp_path_factory):
    """The same, saved without a chat template."""
    return save_llava(tmp_path_factory.mktemp("old"), None)


def save_clip(folder, side=4):
    text = dict(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = CLIPConfig(text_config=text, vision_config=_vision(side).to_dict(), projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    _processor(None).tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A CLIP that the checkpoint's tower fits."""
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    return str(path)


def write_film(path, frames, codec="libx264", every=12, rate=10, **options):
    """A video of numpy frames (height, width, 3), `rate` a second, that can be entered `every` so many frames."""
    import av

    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.codec_context.gop_size = "yuv420p", every
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return str(path)


@pytest.fixture(scope="session")
def film(tmp_path_factory):
    """60 frames of 64 x 48 pixels, each brighter than the one before."""
    greys = [np.full((48, 64, 3), 4 * i, dtype=np.uint8) for i in range(60)]
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4", greys)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the program in this process, in an empty folder: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call
