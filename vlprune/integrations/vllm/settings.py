"""What a user tells the engine: the method, the budget, and how much memory the encoded images may take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from vlprune.budget import Budget
from vlprune.methods.base import Method
from vlprune.methods.in_llm import split_stages
from vlprune.methods.registry import get_method

#: The name under which a model's config, and a request's `mm_processor_kwargs`, carry what is ours.
KEY = "vlprune"
#: What vLLM calls the share of an image's tokens that is dropped (its RFC 45098): 0.75 is keep=0.25 here.
RATE = "image_pruning_rate"
PREFIX = "Pruned"
CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Settings:
    """The method of an engine, and what else it needs.

    `cache_bytes` bounds the host memory in which each worker keeps encoded images, 0 keeps none. `dual_encoder` is the
    id or path of the CLIP or SigLIP that the model was built on, for relevance in the space that text and image share.
    """

    method: Method
    cache_bytes: int = CACHE_BYTES
    dual_encoder: str | None = None

    def __post_init__(self) -> None:
        _check_method(self.method)
        if isinstance(self.cache_bytes, bool) or not isinstance(self.cache_bytes, int) or self.cache_bytes < 0:
            raise ValueError(f"cache_bytes={self.cache_bytes!r}: pass a number of bytes, 0 to cache nothing.")
        if self.dual_encoder is not None and not isinstance(self.dual_encoder, str):
            raise TypeError(f"dual_encoder={self.dual_encoder!r}: pass the id or path of a CLIP or SigLIP model.")
        if getattr(self.method, "relevance", None) == "clip" and self.dual_encoder is None:
            raise ValueError("relevance='clip' needs dual_encoder=: the id or path of the CLIP the model was built on.")

    @property
    def reads_text(self) -> bool:
        """Whether the question is read by the dual encoder's text tower, not as the LLM's tokens."""
        return self.dual_encoder is not None and getattr(self.method, "relevance", "auto") != "llm"

    @classmethod
    def from_dict(cls, given: Any) -> Settings:
        """The settings that a config carries: `{"method": "script", "keep": 64}` and the method's own settings.

        >>> Settings.from_dict({"method": "divprune", "keep": 0.25}).method
        DivPrune(keep=0.25)
        >>> Settings.from_dict({"method": "fastv", "keep": 64})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: method='fastv': chooses inside the LLM, where vLLM cannot drop tokens; take one that ...
        """
        if not isinstance(given, dict):
            raise TypeError(f'{KEY}={given!r}: pass an object such as {{"method": "script", "keep": 64}}.')
        own = {name: value for name, value in given.items() if name in ("cache_bytes", "dual_encoder")}
        settings = {
            name: value for name, value in given.items() if name not in own and name not in ("method", "preset")
        }
        keep = read_keep(settings)
        settings = {name: value for name, value in settings.items() if name not in ("keep", RATE)}
        if keep is not None:
            settings["keep"] = keep
        name = given.get("method", "script")
        if not isinstance(name, str):
            raise TypeError(f"method={name!r}: pass a method's name, such as 'script'.")
        return cls(get_method(name, preset=given.get("preset"), **settings), **own)

    def to_dict(self) -> dict[str, Any]:
        """The settings as `from_dict` reads them.

        >>> from vlprune import Random
        >>> Settings(Random(keep=32)).to_dict()
        {'method': 'random', 'keep': 32, 'seed': 0}
        """
        own = {field.name: getattr(self.method, field.name) for field in fields(self.method)}
        own["keep"] = write_keep(self.method.keep)
        given: dict[str, Any] = {"method": self.method.name, **own}
        if self.cache_bytes != CACHE_BYTES:
            given["cache_bytes"] = self.cache_bytes
        if self.dual_encoder is not None:
            given["dual_encoder"] = self.dual_encoder
        return given


def read_keep(given: dict[str, Any]) -> int | float | Budget | None:
    """The budget in JSON: `keep` as a number, a ratio or a `Budget`'s fields, or the share that is dropped.

    >>> read_keep({"keep": {"per_tile": 64}}).per_tile, read_keep({"image_pruning_rate": 0.75})
    (64, 0.25)
    """
    if RATE in given:
        rate = given[RATE]
        if "keep" in given:
            raise ValueError(f"{RATE}={rate!r} and keep={given['keep']!r}: pass one of them.")
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
            raise ValueError(f"{RATE}={rate!r}: the share of tokens to drop, from 0 up to but not 1.")
        return 1.0 - rate
    keep = given.get("keep")
    if isinstance(keep, dict):
        names = {field.name for field in fields(Budget)}
        for name in keep:
            if name not in names:
                raise ValueError(f"keep={keep!r}: no such field {name!r}; choose from {', '.join(sorted(names))}.")
        keep = Budget(**keep)
    if keep is not None:
        check_fixed(Budget.of(keep))
    return keep


def write_keep(keep: int | float | Budget) -> Any:
    """The budget as JSON has it.

    >>> write_keep(Budget(per_tile=64)), write_keep(0.5)
    ({'per_tile': 64}, 0.5)
    """
    if not isinstance(keep, Budget):
        return keep
    return {name: value for name, value in asdict(keep).items() if value is not None and value is not False}


def check_fixed(budget: Budget) -> None:
    """Raise `ValueError` for a budget that follows the image: vLLM counts the tokens before it encodes the image."""
    if budget.adaptive is not None:
        raise ValueError(
            f"keep={budget}: vLLM must know the number of tokens before it encodes the image; pass tokens=, ratio=, "
            "per_tile= or per_frame=."
        )


def _check_method(method: Any) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"method={method!r}: pass a Method such as Script(keep=64).")
    _, inside = split_stages(method)
    if inside is not None:
        raise ValueError(
            f"method={method.name!r}: chooses inside the LLM, where vLLM cannot drop tokens; take one that chooses "
            "before it."
        )
    check_fixed(Budget.of(method.keep))
    if getattr(method, "adaptive", False):
        raise ValueError(
            f"method={method.name!r} with adaptive=True: vLLM must know the number of tokens before it encodes the "
            "image."
        )


@dataclass(frozen=True)
class _Overrides:
    """Changes a model's config, as vLLM asks of a callable in `hf_overrides`."""

    settings: dict[str, Any]

    def __call__(self, config: Any) -> Any:
        names = getattr(config, "architectures", None) or []
        config.architectures = [name if name.startswith(PREFIX) else PREFIX + name for name in names] or None
        setattr(config, KEY, self.settings)
        return config


def overrides(method: Method, *, cache_bytes: int = CACHE_BYTES, dual_encoder: str | None = None) -> _Overrides:
    """What to pass as `hf_overrides` so that vLLM prunes by this method: `LLM(model, hf_overrides=overrides(method))`.

    Args:
        method: one that chooses before the LLM, such as `Script(keep=64)`, and keeps a fixed number of tokens.
        cache_bytes: host memory in which each worker keeps encoded images for further questions; 0 keeps none.
        dual_encoder: the id or path of the CLIP or SigLIP that the model was built on, for relevance in its space.

    >>> from vlprune import DivPrune
    >>> overrides(DivPrune(keep=64)).settings
    {'method': 'divprune', 'keep': 64}
    """
    return _Overrides(Settings(method, cache_bytes, dual_encoder).to_dict())
