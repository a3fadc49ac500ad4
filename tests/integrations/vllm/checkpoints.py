"""Tiny checkpoints of real architectures that vLLM loads, and what `attach` answers on the same weights.

The sizes are the smallest that vLLM's CPU attention takes: heads of 32. Weights are large enough that no two logits are
nearly equal.
"""

from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image

from tests.support import families
from tests.support.families.case import LAST, PATCH, quiet_ends
from tests.support.family_checkpoints import TEMPLATE, processor, tokenizer
from tests.support.tiny_llava import loud
from vlprune.integrations.vllm.checkpoint import save_for_vllm

WIDTH = 64
NAMES = ("llava", "llava_next", "llava_onevision", "internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
CASES = {case.name: case for case in (families.llava.Llava(), *families.CASES)}
WORDS = [f"w{i}" for i in range(80)]


def config(name):
    """The family's tiny config with an LLM that vLLM takes."""
    made = CASES[name].config()
    text = made.text_config
    text.hidden_size, text.head_dim, text.intermediate_size = WIDTH, 32, 96
    text.num_attention_heads, text.num_key_value_heads = 2, 2
    text.max_position_embeddings = 4096
    vision = made.vision_config
    if name.startswith("qwen"):
        text.rope_parameters = {**text.rope_parameters, "mrope_section": [4, 6, 6]}
        for width in ("out_hidden_size", "hidden_size") if name != "qwen2_vl" else ("hidden_size",):
            if width == "out_hidden_size" or name == "qwen2_vl":
                setattr(vision, width, WIDTH)
    made.architectures = [CASES[name].model_class.__name__]
    return made


def own_processor(name):
    """The family's real processor."""
    if name != "llava":
        made = processor(name)
        if name.startswith("qwen"):  # as published; vLLM normalizes both in one place
            for value in ("image_mean", "image_std"):
                setattr(made.video_processor, value, getattr(made.image_processor, value))
        return made
    from transformers import CLIPImageProcessorPil, LlavaProcessor

    side = 5 * PATCH
    images = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    options = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = TEMPLATE.replace("MARK", "{{ '<' + part['type'] + '>' }} ")
    return LlavaProcessor(image_processor=images, tokenizer=tokenizer(), chat_template=template, **options)


def make_model(name):
    made = CASES[name].model_class._from_config(config(name), attn_implementation="sdpa")
    return quiet_ends(loud(made, seed=0))


def save(name, folder):
    """Save model and processor as vLLM reads them; returns the folder."""
    folder = Path(folder)
    model = make_model(name)
    model.generation_config.eos_token_id = LAST
    saved = folder.with_name(f"{name}-saved") if name.startswith("llava") else folder
    model.save_pretrained(saved)
    own_processor(name).save_pretrained(saved)
    if name.startswith("llava"):
        save_for_vllm(saved, folder)
    if name == "qwen3_vl":
        _rename_tokens(folder)
    return str(folder)


def _rename_tokens(folder):
    """vLLM writes Qwen3-VL's real tokens into its dummy prompts."""
    names = {"<open>": "<|vision_start|>", "<close>": "<|vision_end|>"}
    names |= {f"<{kind}>": f"<|{kind}_pad|>" for kind in ("image", "video")}
    names["'<' + part['type'] + '>'"] = "'<|' + part['type'] + '_pad|>'"
    for file in [*folder.glob("*token*.json"), *folder.glob("*processor*.json"), *folder.glob("*.jinja")]:
        text = file.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        file.write_text(text)


def picture(seed, size=(60, 44)):
    """A picture (width, height) of blocks of random colours: images that differ in every token."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (3, 11, 13), generator=generator, dtype=torch.uint8)
    return Image.fromarray(blocks.permute(1, 2, 0).numpy()).resize(size, Image.Resampling.NEAREST)


def question(seed, length=6):
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (length,), generator=generator).tolist())


def chat(made, text, images=1, videos=0):
    """The prompt of one turn, as the model's own template writes it."""
    content = [{"type": "image"}] * images + [{"type": "video"}] * videos + [{"type": "text", "text": text}]
    turn = [{"role": "user", "content": content}]
    return made.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)


@lru_cache(maxsize=2)
def reference(folder):
    """The same weights and processor in transformers, in float32; the folder is named after the family."""
    from transformers import AutoProcessor

    model = make_model(Path(folder).name)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = LAST, 0
    return model, AutoProcessor.from_pretrained(folder)
