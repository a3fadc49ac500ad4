"""The embedded model: a small LLaVA that answers questions about drawn scenes, with a CLIP text tower beside it.

It has LLaVA-1.5's architecture and its 576 visual tokens, and is trained by `python -m vlprune.pocket.train`;
`weights/README.md` is its model card.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlprune.pocket.world import balanced_questions, questions, scenes

if TYPE_CHECKING:
    from transformers import CLIPModel, LlavaForConditionalGeneration, LlavaProcessor

    from vlprune.pocket.render import images

__all__ = ["balanced_questions", "images", "load", "path", "questions", "scenes"]


def path() -> str:
    """The folder that `LlavaForConditionalGeneration.from_pretrained` and `AutoProcessor.from_pretrained` read.

    >>> import os
    >>> sorted(f for f in os.listdir(path()) if f.endswith(".safetensors"))
    ['clip.safetensors', 'model.safetensors']
    """
    return str(Path(__file__).parent / "weights")


def load() -> tuple[LlavaForConditionalGeneration, LlavaProcessor, CLIPModel]:
    """Load the model in float32, its processor, and a CLIP whose vision tower *is* the model's own.

    >>> model, processor, clip = load()
    >>> clip.vision_model is model.model.vision_tower
    True
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoProcessor, CLIPConfig, CLIPModel, LlavaForConditionalGeneration

    folder = Path(path())
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    config = CLIPConfig.from_json_file(folder / "clip.json")
    clip = CLIPModel(config).eval()
    clip.vision_model = model.model.vision_tower  # shared, so that it is neither stored nor run twice
    left = clip.load_state_dict(load_file(folder / "clip.safetensors"), strict=False)
    missing = [name for name in left.missing_keys if not name.startswith("vision_model.")]
    if missing or left.unexpected_keys:
        raise RuntimeError(f"clip.safetensors does not fit clip.json: {missing + left.unexpected_keys}")
    return model, AutoProcessor.from_pretrained(folder), clip


def __getattr__(name: str) -> Any:
    if name == "images":  # drawing needs torch
        from vlprune.pocket.render import images

        return images
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
