"""What the benchmarks measure: published architectures with random weights, prompts for them, and ways to run them.

`thin` is a LLaVA as deep as LLaVA-1.5-7B and hardly wide, with 64 visual tokens: its time is what Python takes.
"""

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from vlprune import Budget, Script, ScriptPlus, attach
from vlprune.cuda_graphs import use_cuda_graphs
from vlprune.measure.architectures import Architecture, build_text_tower, get_architecture

#: Budgets by model; the papers' where they have one.
KEEP = {
    "llava-1.5-7b": 64,
    "llava-next-7b": Budget(per_tile=64),
    "llava-onevision-7b": Budget(per_frame=16),
    "llava-video-7b": Budget(per_frame=16),
    "internvl3-8b": 128,
    "qwen2.5-vl-7b": 128,
    "thin": 16,
}
PUBLISHED = [name for name in KEEP if name != "thin"]
#: One image, one image in tiles, one video.
LLAVAS = ["llava-1.5-7b", "llava-next-7b", "llava-video-7b"]
TEXT_TOKENS = 64
QUESTION = "what is the colour of the small thing on the left of the picture?"
#: Values of `attach(cuda_graphs=)` by their names on the command line.
WAYS = {"eager": False, "towers": "towers", "graphs": True, "compile": "compile"}


def _thin() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    vision = CLIPVisionConfig(num_hidden_layers=24, image_size=112, patch_size=14, projection_dim=32, **small)
    text = LlamaConfig(num_hidden_layers=32, num_key_value_heads=2, vocab_size=200, **small)
    return LlavaConfig(vision_config=vision, text_config=text, image_token_id=4)


THIN = Architecture("thin", "one image of 112x112", 64, 4, _thin, lambda: {"pixel_values": torch.zeros(1, 3, 112, 112)})


@dataclass(frozen=True)
class Subject:
    """A model with its budget, and `text_tower`, the text twin of its vision tower, where there is one to attach."""

    architecture: Architecture
    model: Any
    keep: Any
    text_tower: Any

    @property
    def name(self) -> str:
        return self.architecture.name

    @property
    def methods(self) -> dict[str, Any]:
        """What takes turns, by title; None is the whole model."""
        return {"all tokens": None, "script": Script(keep=self.keep), "script_plus": ScriptPlus(keep=self.keep)}

    def attaching(self, rows: int = 1) -> dict[str, Any]:
        """What `attach` gets beside the method, for prompts of so many rows."""
        if self.text_tower is None:
            return {}  # the LLM embeds the words behind the image
        questions = [QUESTION, *(f"{QUESTION} and on picture {row}?" for row in range(1, rows))]
        return {"dual_encoder": self.text_tower, "query": questions}

    def prompts(self, lengths: list[int], images: int = 1) -> dict[str, torch.Tensor]:
        """Prompts of these numbers of words, padded on the left, with `images` images or videos among them.

        No two images are alike, and there are words between any two.
        """
        one, model = self.architecture, self.model
        words = min(30000, model.config.get_text_config().vocab_size)
        random = torch.Generator().manual_seed(0)
        rows = []
        for length in lengths:
            first, *others = torch.randint(10, words, (length,), generator=random).tensor_split(images + 1)
            visual = torch.full((one.tokens,), one.placeholder)
            rows.append(torch.cat([first, *(part for other in others for part in (visual, other))]))
        width = max(map(len, rows))
        inputs = {
            "input_ids": torch.stack([F.pad(row, (width - len(row), 0)) for row in rows]),
            "attention_mask": torch.stack([F.pad(torch.ones_like(row), (width - len(row), 0)) for row in rows]),
        }
        count = images * len(rows)
        for name, value in one.pixels().items():
            if value.is_floating_point():  # made on the device: many images are many GB
                shape = (count * value.shape[0], *value.shape[1:])
                inputs[name] = torch.randn(shape, dtype=model.dtype, device=model.device)
            else:
                inputs[name] = torch.cat([value] * count)
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (inputs["input_ids"] == one.placeholder).int()
        return {name: value.to(model.device) for name, value in inputs.items()}


def load_subject(name: str, device: str) -> Subject:
    """A model of `KEEP` with random weights, in bf16 (thin: float32); LLaVA-1.5 and NeXT with CLIP's text tower."""
    torch.manual_seed(0)
    if name == "thin":
        return Subject(THIN, THIN.build(device, torch.float32), KEEP[name], None)
    one = get_architecture(name)
    model = one.build(device)
    clip = model.config.vision_config.model_type == "clip_vision_model"
    return Subject(one, model, KEEP[name], build_text_tower(model) if clip else None)


@contextmanager
def running(model: Any, method: Any, way: str, **attaching: Any):
    """Inside, the model runs with the method attached, or whole if that is None, one of the `WAYS`; gives its pruner.

    Features of images are not kept for another call.
    """
    if method is not None:
        with attach(model, method, cache_bytes=0, cuda_graphs=WAYS[way], **attaching) as pruner:
            yield pruner
        return
    graphs = use_cuda_graphs(model, WAYS[way])
    try:
        yield None
    finally:
        if graphs is not None:
            graphs.close()


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
