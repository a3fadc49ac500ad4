"""A check of transformers' `generate` that takes longer than all else it does on the host, answered at once.

Without `generation_config=`, each call asks the model's config for settings that belong into a generation config, and
refuses to go on if it has some. To tell them from a config's own, transformers 5.17 makes another config with all
defaults; for a LLaVA that takes more than half of the time between the call and the first kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from vlprune.pruning.patched_attributes import patched_attributes

#: What `generate` asks a config for.
NAME = "_get_generation_parameters"


@contextmanager
def quick_generation_check(model: Any) -> Iterator[None]:
    """Inside, `model.generate` gets its answer at once where no such setting is there at all, as is usual.

    Elsewhere, and where transformers has no such function, all is as without it.
    """
    prepare = getattr(model, "_prepare_generation_config", None)
    if prepare is None or not hasattr(type(model.config), NAME):
        yield
        return
    with patched_attributes(model, {"_prepare_generation_config": partial(_prepare, model.config, prepare)}):
        yield


def _prepare(config: Any, prepare: Any, *args: Any, **kwargs: Any) -> Any:
    """transformers' own `prepare`; the config answers by ours meanwhile, not longer: a config is saved whole."""
    config.__dict__[NAME] = partial(_settings, config)
    try:
        return prepare(*args, **kwargs)
    finally:
        config.__dict__.pop(NAME, None)


def _settings(config: Any) -> dict[str, Any]:
    """The settings that transformers would object to."""
    from transformers import GenerationConfig

    names = set(GenerationConfig._get_default_generation_params()) - {"use_cache"}  # which is a config's own, too
    if all(getattr(config, name, None) is None for name in names):
        return {}
    found: dict[str, Any] = getattr(type(config), NAME)(config)
    return found
