"""The photo model as a folder: weights in 8 bits, its settings and words beside them, read by `--model photo`.

A matrix is stored as whole numbers from −127 to 127 and one scale a row; everything else in half precision, and so is
the projector: its columns are of layers of the tower whose sizes differ by a factor of 30, and one scale a row would
leave the smallest only −1, 0 and 1.
`python -m vlprune.pocket.photo_folder TRAINED FOLDER` writes it from what `train_photo` saved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "weights8.safetensors"
_SCALE = ".scale"
_PROJECTOR = "multi_modal_projector."
_SETTINGS = (
    *("config.json", "generation_config.json", "processor_config.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json"),
)


def find_folder() -> Path | None:
    """The folder `models/photo` of the checkout that this package lies in; None where there is none.

    >>> folder = find_folder()
    >>> folder is None or is_photo_folder(folder)
    True
    """
    folder = Path(__file__).resolve().parents[2] / "models" / "photo"
    return folder if is_photo_folder(folder) else None


def is_photo_folder(folder: Path) -> bool:
    """Whether the folder was written by `write_folder`."""
    return (folder / WEIGHTS).is_file()


def pack_8_bits(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each (rows, columns) matrix as int8, and a float16 (rows, 1) `NAME.scale` beside it.

    >>> import torch
    >>> packed = pack_8_bits({"a": torch.tensor([[1.0, -0.5], [0.0, 0.0]]), "b": torch.tensor([3.0])})
    >>> packed["a"].tolist(), packed["a.scale"].shape, packed["b"].dtype
    ([[127, -64], [0, 0]], torch.Size([2, 1]), torch.float16)
    """
    import torch

    packed = {}
    for name, value in weights.items():
        if value.ndim != 2 or _PROJECTOR in name:
            packed[name] = value.half()
            continue
        # the smallest half that is not denormal: a row of zeros must not divide by zero
        scale = (value.float().abs().amax(dim=1, keepdim=True) / 127).clamp(min=6.2e-5).half()
        packed[name] = (value.float() / scale.float()).round().clamp(-127, 127).to(torch.int8)
        packed[name + _SCALE] = scale
    return packed


def unpack_8_bits(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float32 from what `pack_8_bits` gave; off by at most half a step of the row's scale.

    >>> import torch
    >>> row = torch.tensor([[1.0, -0.5, 0.25]])
    >>> (unpack_8_bits(pack_8_bits({"a": row}))["a"] - row).abs().max().item() <= 0.5 / 127 + 1e-3
    True
    """
    return {
        name: value.float() * packed[name + _SCALE].float() if name + _SCALE in packed else value.float()
        for name, value in packed.items()
        if not name.endswith(_SCALE)
    }


def write_folder(trained: Path, folder: Path) -> int:
    """Write the model that `train_photo` saved in `trained` to `folder` in 8 bits; its weights' size in bytes."""
    from safetensors.torch import load_file, save_file

    parts = {"": trained, "clip.": trained / "clip"}
    weights: dict[str, Tensor] = {}
    for prefix, place in parts.items():
        files = sorted(place.glob("model*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{place}: there is no model.safetensors.")
        weights |= {prefix + name: value for file in files for name, value in load_file(file).items()}
    (folder / "clip").mkdir(parents=True, exist_ok=True)
    save_file(pack_8_bits(weights), folder / WEIGHTS, metadata={"format": "pt"})
    for name in [*_SETTINGS, *(f"clip/{name}" for name in _SETTINGS)]:
        if (trained / name).is_file():
            shutil.copyfile(trained / name, folder / name)
    for config in (folder / "config.json", folder / "clip" / "config.json"):
        config.write_text(json.dumps(_without_paths(json.loads(config.read_text())), indent=2) + "\n")
    return (folder / WEIGHTS).stat().st_size


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without the places that the parts were read from when the model was trained."""
    return {
        name: _without_paths(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name != "_name_or_path"
    }


def load_folder(folder: Path) -> tuple[Any, Any, tuple[Any, Any]]:
    """(LLaVA in float32, its processor, (dual encoder, its tokenizer)) of a folder that `write_folder` wrote."""
    from safetensors.torch import load_file
    from transformers import AutoProcessor, AutoTokenizer, CLIPModel, LlavaForConditionalGeneration

    weights = unpack_8_bits(load_file(folder / WEIGHTS))
    clip_weights = {n.removeprefix("clip."): v for n, v in weights.items() if n.startswith("clip.")}
    model_weights = {n: v for n, v in weights.items() if not n.startswith("clip.")}
    model = _assemble(LlavaForConditionalGeneration, folder, model_weights)
    clip = _assemble(CLIPModel, folder / "clip", clip_weights)
    tokenizer = AutoTokenizer.from_pretrained(folder / "clip")
    return model, AutoProcessor.from_pretrained(folder), (clip, tokenizer)


def _assemble(kind: Any, folder: Path, weights: dict[str, Tensor]) -> Any:
    """The model of that class with these weights, by transformers' own names for them; every one must fit."""
    import torch

    config = kind.config_class.from_pretrained(folder)
    model, found = kind.from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    if found["missing_keys"] or found["unexpected_keys"]:
        odd = sorted({*found["missing_keys"], *found["unexpected_keys"]})
        raise ValueError(f"{WEIGHTS} does not fit config.json: {', '.join(odd[:4])}")
    return model.eval()


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m vlprune.pocket.photo_folder", description=write_folder.__doc__)
    parser.add_argument("trained", type=Path, help="the --out of vlprune.pocket.train_photo")
    parser.add_argument("folder", type=Path, help="models/photo of a checkout, or another place to pass to --model")
    args = parser.parse_args()
    print(f"{args.folder / WEIGHTS}: {write_folder(args.trained, args.folder) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
