"""A checkpoint as vLLM reads it."""

import shutil
from pathlib import Path


def save_for_vllm(source: str | Path, folder: str | Path) -> str:
    """Copy a LLaVA checkpoint of one file that transformers 5 saved, with the names of weights that vLLM 0.32 reads.

    transformers 5 leaves `vision_model.` out of the names of a CLIP or SigLIP tower's weights, and vLLM 0.32 asks for
    it. Checkpoints that were saved earlier need no copy. Returns the folder.

    >>> import tempfile
    >>> from vlprune import pocket
    >>> folder = save_for_vllm(pocket.path(), tempfile.mkdtemp())
    """
    from safetensors.torch import load_file, save_file

    source, folder = Path(source), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model"):
            shutil.copy(file, folder / file.name)
    old, new = "vision_tower.", "vision_tower.vision_model."
    weights = load_file(source / "model.safetensors")
    named = {name if new in name else name.replace(old, new): value for name, value in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
