"""A model by its name on the command line; whatever stands in the way of it is said in one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlprune.errors import UserError


@dataclass
class Loaded:
    """A model with what belongs to it; `clip` is its dual encoder, if it has one."""

    name: str
    model: Any
    processor: Any
    clip: Any


def load(name: str, clip: str | None, device: str, *, video: bool = False) -> Loaded:
    """The pocket model, a folder, or a model of the hub, for images or a video.

    Its class, and whether it takes videos, are checked before its weights are read.

    >>> load("poket", None, "cpu")
    Traceback (most recent call last):
    ...
    vlprune.errors.UserError: --model poket: there is no such folder, and it is not 'pocket' or a hub id (did you mean \
'pocket'?).
    """
    where = _device(device)
    if name == "pocket":
        from vlprune import pocket

        _quiet(bars=False)
        model, processor, encoder = pocket.load()
        _check_kind(name, processor, video)
        return Loaded(name, model.to(where), processor, clip or encoder.to(where))
    place = Path(name).expanduser()
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise UserError(f"--model {name}: the folder has no config.json.")
        name = str(place)
    elif place.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise UserError(f"--model {name}: there is no such folder, and it is not 'pocket' or a hub id{_hint(name)}.")
    else:
        say_looking(name)
    _quiet(bars=not place.is_dir())
    import transformers

    with one_sentence("--model", name):
        config, _ = transformers.PreTrainedConfig.get_config_dict(name)
    kind = getattr(transformers, _checked_class(name, config))
    with one_sentence("--model", name):
        processor = _processor(name)
        _check_kind(name, processor, video)
        model = kind.from_pretrained(name, dtype="auto", use_safetensors=True).eval().to(where)
    return Loaded(name, model, processor, clip)


def _processor(name: str) -> Any:
    """The checkpoint's processor; without torchvision, which all of transformers' video processors need, for images."""
    from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    from transformers.utils import is_torchvision_available

    kind = PROCESSOR_MAPPING.get(type(AutoConfig.from_pretrained(name)), None)
    if kind is None or is_torchvision_available() or "video_processor" not in kind.get_attributes():
        return AutoProcessor.from_pretrained(name)

    def check(self: Any, part: str, given: Any) -> Any:
        return kind.check_argument_for_proper_class(self, part, given) if given is not None else None

    images: Any = type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})
    loaders = {"image_processor": AutoImageProcessor, "tokenizer": AutoTokenizer}
    parts = [loaders[part].from_pretrained(name) if part in loaders else None for part in kind.get_attributes()]
    return images.from_args_and_dict(parts, kind.get_processor_dict(name)[0])


def _check_kind(name: str, processor: Any, video: bool) -> None:
    if not video or getattr(processor, "video_processor", None) is not None:
        return
    if hasattr(processor, "video_processor"):
        raise UserError(
            f"--model {name}: transformers prepares its videos with torchvision, which is not installed; "
            "install the version that goes with your torch."
        )
    raise UserError(f"--model {name} takes images only; LLaVA-OneVision and Qwen2.5-VL, for two, take videos.")


def say_looking(name: str) -> None:
    """One line on the standard error if `name` sends us to the hub: one out of reach takes half a minute to say so.

    >>> from contextlib import redirect_stderr
    >>> from unittest.mock import patch
    >>> with redirect_stderr(sys.stdout), patch("huggingface_hub.is_offline_mode", bool):
    ...     say_looking("someone/something")
    ...     say_looking("/no/such/folder")
    vlprune: looking for someone/something on the hub ...
    """
    from huggingface_hub import is_offline_mode

    if re.fullmatch(r"(\w[\w.-]*/)?[\w.-]+", name) and not Path(name).exists() and not is_offline_mode():
        print(f"vlprune: looking for {name} on the hub ...", file=sys.stderr, flush=True)


@contextmanager
def one_sentence(option: str, what: str) -> Iterator[None]:
    """Turn what transformers raises about missing, unreachable or broken files and packages into one sentence."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        causes = [error.__cause__, error.__context__, error]
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            raise UserError(
                f"{option} {what}: access to it must be asked for on the hub, and a token given."
            ) from error
        if any(isinstance(cause, LocalEntryNotFoundError) for cause in causes) or "couldn't connect" in str(error):
            raise UserError(f"{option} {what}: there is no such folder, and the hub cannot be reached.") from error
        if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
            raise UserError(f"{option} {what}: the hub has no such model.") from error
        raise UserError(f"{option} {what}: it cannot be loaded ({str(error).splitlines()[0].rstrip('.')}).") from error


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: no such device; use cpu or cuda.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices.")
    return device


def _quiet(bars: bool) -> None:
    """No notices of retries and the like, and bars only where a download may take long."""
    import huggingface_hub.utils.logging as hub
    import transformers.utils.logging as quiet

    quiet.set_verbosity_error()
    hub.set_verbosity_error()
    if not bars:
        quiet.disable_progress_bar()


def _hint(name: str) -> str:
    from difflib import get_close_matches

    return " (did you mean 'pocket'?)" if get_close_matches(name, ["pocket"], cutoff=0.4) else ""


def _checked_class(name: str, config: dict[str, Any]) -> str:
    """The name of the checkpoint's class, if a family has it or the generic one may try it."""
    from difflib import get_close_matches

    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    from vlprune.models import list_families

    known = [kind for family in list_families() for kind in family.classes]
    kind = (config.get("architectures") or [f"model of type {config.get('model_type')!r}"])[0]
    if kind not in known and kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values():
        near = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise UserError(f"--model {name} is a {kind}, which is not supported; the nearest supported class is {near}.")
    return str(kind)
