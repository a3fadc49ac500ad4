"""Load a model by its name on the command line; failures become one-sentence `UserError`s."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlprune.errors import UserError, is_fault, is_out_of_memory
from vlprune.evaluation.rust_panics import without_panic_reports

#: Endings of files that pickle weights.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass
class LoadedModel:
    """A model with its name and processor.

    `clip` is its dual encoder: loaded, named by a string, or None. See `with_loaded_clip`.
    """

    name: str
    model: Any
    processor: Any
    clip: Any


def load_model(
    name: str,
    clip: str | None,
    device: str,
    *,
    video: bool = False,
    dtype: str = "auto",
    device_map: str | None = None,
) -> LoadedModel:
    """Load the pocket model, the photo model, a checkpoint folder, or a model of the hub, for images or for a video.

    `clip` names its dual encoder; "auto" is the published one that the model's vision tower comes from. A folder may
    bring its own in the folder `clip`, as `train_photo` writes it, which is used if no other is named. `dtype` is
    that of the weights; by "auto" the checkpoint's own, or float32 on a CPU that does not compute in 16 bits, where an
    answer takes a hundred times as long in them. A `device_map` spreads them over devices, in place of `device`. The
    class, and whether it takes videos, are checked before the weights are read.

    >>> load_model("poket", None, "cpu")
    Traceback (most recent call last):
    ...
    vlprune.errors.UserError: --model poket: there is no such folder, and it is not 'pocket', 'photo' or a hub id \
(did you mean 'pocket'?).
    """
    where = pick_device(device)
    if name == "pocket":
        from vlprune import pocket

        silence_logging(bars=False)
        model, processor, encoder = pocket.load()
        _check_takes_video(name, processor, video)
        own = clip is None or clip == "auto"
        return LoadedModel(name, model.to(where), processor, encoder.to(where) if own else clip)
    photo = _photo_folder(name)
    if photo is not None:
        return _load_photo(name, photo, clip, where, video)
    place = Path(name).expanduser()
    if place.is_dir():
        if not (place / "config.json").is_file():
            raise UserError(f"--model {name}: the folder has no config.json.")
        name = str(place)
        if clip in (None, "auto") and (place / "clip" / "config.json").is_file():
            clip = str(place / "clip")
    elif place.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        hint = _name_hint(name)
        raise UserError(f"--model {name}: there is no such folder, and it is not 'pocket', 'photo' or a hub id{hint}.")
    else:
        announce_hub_lookup(name)
    silence_logging(bars=not place.is_dir())
    import transformers

    with explain_load_errors("--model", name):
        try:
            config, _ = transformers.PreTrainedConfig.get_config_dict(name)
        except TypeError:  # 5.17 fails so on one that is no object
            config = None
    kind = getattr(transformers, _checked_class(name, config))
    with explain_load_errors("--model", name):
        with without_panic_reports() if place.is_dir() else nullcontext():  # the bars of downloads are shown
            processor = _load_processor(name)
            getattr(processor, "tokenizer", str)("a word")  # one that panics at any text does so here
        _check_takes_video(name, processor, video)
        placed: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
        model = kind.from_pretrained(name, dtype=dtype, use_safetensors=True, **placed).eval()
        if device_map is None:
            model = model.to(where)
            if dtype == "auto" and _computes_slowly(model):
                model = model.float()
    return LoadedModel(name, model, processor, _text_twin(model) if clip == "auto" else clip)


def _computes_slowly(model: Any) -> bool:
    """Whether the model is in 16 bits, and on a CPU that does not compute in them, as oneDNN knows it."""
    import torch

    if model.device.type != "cpu" or model.dtype.itemsize != 2 or getattr(model, "is_quantized", False):
        return False
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _photo_folder(name: str) -> Path | None:
    """The photo model's folder if that is what the name means: the checkout's for "photo", or its path."""
    from vlprune.pocket.photo_folder import find_folder, is_photo_folder

    place = Path(name).expanduser()
    if is_photo_folder(place):
        return place
    if name != "photo" or place.is_dir():
        return None
    folder = find_folder()
    if folder is None:
        raise UserError(
            "--model photo: there are no weights in models/photo beside the package, where a checkout may have them; "
            "pass the folder's path instead."
        )
    return folder


def _load_photo(name: str, folder: Path, clip: str | None, where: Any, video: bool) -> LoadedModel:
    """Load the photo model, with its own dual encoder unless another is named."""
    from vlprune.pocket.photo_folder import load_folder

    silence_logging(bars=False)
    with explain_load_errors("--model", name):
        model, processor, (encoder, tokenizer) = load_folder(folder)
    _check_takes_video(name, processor, video)
    own = clip is None or clip == "auto"
    return LoadedModel(name, model.to(where), processor, (encoder.to(where), tokenizer) if own else clip)


def _text_twin(model: Any) -> str:
    """The hub id of the dual encoder that the model's vision tower comes from."""
    from vlprune.pruning.dual_encoder import find_text_twin

    try:
        return find_text_twin(model)
    except ValueError as error:
        raise UserError(f"--dual-encoder auto: {str(error).partition(': ')[2]}") from error


def with_loaded_clip(loaded: LoadedModel) -> LoadedModel:
    """The same, with the dual encoder read if `clip` only names it, so that not each pruner reads it anew."""
    if not isinstance(loaded.clip, str):
        return loaded
    from vlprune.pruning.dual_encoder import load_dual_encoder

    announce_hub_lookup(loaded.clip)
    with explain_load_errors("--dual-encoder", loaded.clip):
        dual = load_dual_encoder(loaded.clip, loaded.model, loaded.processor)
    return replace(loaded, clip=(dual.encoder, dual.tokenizer))


def _load_processor(name: str) -> Any:
    """Load the checkpoint's processor; without torchvision, which video processors need, one for images only."""
    from transformers import AutoConfig, AutoProcessor, AutoTokenizer
    from transformers.models.auto.image_processing_auto import AutoImageProcessor  # 5.17 hides it without torchvision
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


def _check_takes_video(name: str, processor: Any, video: bool) -> None:
    """Raise if a video is asked for and the processor prepares none."""
    if not video or getattr(processor, "video_processor", None) is not None:
        return
    if hasattr(processor, "video_processor"):
        raise UserError(
            f"--model {name}: transformers prepares its videos with torchvision, which is not installed; "
            "install the version that goes with your torch."
        )
    raise UserError(f"--model {name} takes images only; LLaVA-OneVision and Qwen2.5-VL, for two, take videos.")


def announce_hub_lookup(name: str) -> None:
    """Print a line on the standard error if `name` must be looked up on the hub: a failing lookup takes half a minute.

    >>> from contextlib import redirect_stderr
    >>> from unittest.mock import patch
    >>> with redirect_stderr(sys.stdout), patch("huggingface_hub.is_offline_mode", bool):
    ...     announce_hub_lookup("someone/something")
    ...     announce_hub_lookup("/no/such/folder")
    vlprune: looking for someone/something on the hub ...
    """
    from huggingface_hub import is_offline_mode

    if re.fullmatch(r"(\w[\w.-]*/)?[\w.-]+", name) and not Path(name).exists() and not is_offline_mode():
        print(f"vlprune: looking for {name} on the hub ...", file=sys.stderr, flush=True)


@contextmanager
def explain_load_errors(option: str, what: str) -> Iterator[None]:
    """Turn errors about missing, unreachable or broken files and packages into a one-sentence `UserError`.

    A checkpoint may be anything at all, and what its loaders raise on a field that is absurd is anything too.
    """
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
    from safetensors import SafetensorError

    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not is_fault(error):
            raise
        if is_out_of_memory(error):
            raise UserError(f"{option} {what}: there is not enough memory to load it.") from error
        causes = [error.__cause__, error.__context__, error]
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            raise UserError(
                f"{option} {what}: access to it must be asked for on the hub, and a token given."
            ) from error
        if any(isinstance(cause, LocalEntryNotFoundError) for cause in causes) or "couldn't connect" in str(error):
            raise UserError(f"{option} {what}: there is no such folder, and the hub cannot be reached.") from error
        if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
            raise UserError(f"{option} {what}: the hub has no such model.") from error
        pickled = _pickled_weights(Path(what).expanduser())
        if pickled is not None:
            raise UserError(
                f"{option} {what}: its weights are in {pickled.name}, a pickle, which could run any code and is never "
                "read: save them as safetensors."
            ) from error
        if "use_safetensors" in str(error):
            raise UserError(
                f"{option} {what}: the hub has its weights as a pickle only, which could run any code and is never "
                "read: save them as safetensors."
            ) from error
        plain = isinstance(error, (OSError, ValueError, ImportError, SafetensorError)) and str(error).strip()
        why = " ".join((str(error) if plain else f"{type(error).__name__}: {error}").strip().splitlines()[:2])
        raise UserError(f"{option} {what}: it cannot be loaded ({why.rstrip('.: ')}).") from error


def _pickled_weights(folder: Path) -> Path | None:
    """The pickled weights of a checkpoint that has no others; None where there are none."""
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return None
    return next((path for path in sorted(folder.iterdir()) if path.suffix in PICKLES), None)


def pick_device(name: str) -> Any:
    """The torch device of that name; "auto" is a GPU where there is one."""
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


def silence_logging(bars: bool) -> None:
    """Turn off log messages, and progress bars unless `bars`."""
    import huggingface_hub.utils.logging as hub
    import transformers.utils.logging as quiet

    quiet.set_verbosity_error()
    hub.set_verbosity_error()
    if not bars:
        quiet.disable_progress_bar()


def _name_hint(name: str) -> str:
    """A parenthesis that proposes the model of ours whose name is near to this one, else nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, ["pocket", "photo"], n=1, cutoff=0.4)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _checked_class(name: str, config: Any) -> str:
    """Name of the checkpoint's class; raises if no family has it and the generic family cannot try it."""
    from difflib import get_close_matches

    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    from vlprune.models import list_families
    from vlprune.models.registry import mentions_images

    known = [kind for family in list_families() for kind in family.classes]
    if not isinstance(config, dict):
        raise UserError(f"--model {name}: its config.json holds no settings.")
    classes = config.get("architectures") or [f"model of type {config.get('model_type')!r}"]
    if not isinstance(classes, list) or not isinstance(classes[0], str):
        raise UserError(f"--model {name}: 'architectures' in its config.json must be a list of class names.")
    kind = classes[0]
    if kind not in known and kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values():
        if not mentions_images(config):
            raise UserError(f"--model {name} is a {kind}, which takes no images; `vlprune models` lists those that do.")
        near = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise UserError(f"--model {name} is a {kind}, which is not supported; the nearest supported class is {near}.")
    return kind
