"""vlprune: drop the visual tokens a question does not need, before the LLM pays for them.

>>> import vlprune
>>> vlprune.__version__.count(".")
2
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vlprune.version import __version__ as __version__

if TYPE_CHECKING:  # names load on first use, so that `vlprune --help` does not wait for torch
    from vlprune import pocket as pocket
    from vlprune.budget import Budget as Budget
    from vlprune.errors import UnsupportedModel as UnsupportedModel
    from vlprune.integrations import vllm as vllm
    from vlprune.methods import *  # noqa: F403
    from vlprune.pruner import Pruner as Pruner
    from vlprune.pruner import attach as attach
    from vlprune.record import Record as Record

#: Public names and the modules that they come from; those of `vlprune.methods` are public too, all of them.
_HOME = {"attach": "pruner", "Pruner": "pruner", "Budget": "budget", "Record": "record", "UnsupportedModel": "errors"}
#: Packages that are public names.
_PACKAGES = {"pocket": "vlprune.pocket", "vllm": "vlprune.integrations.vllm"}


def _public_names() -> list[str]:
    return [*_HOME, *import_module("vlprune.methods").__all__, "__version__", *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public_names()
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    home = _HOME.get(name)
    if home is None and not name.startswith("_") and find_spec(f"vlprune.{name}") is None:
        home = "methods"
    if home is None or not hasattr(module := import_module(f"vlprune.{home}"), name):
        raise AttributeError(f"module 'vlprune' has no attribute {name!r}")
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(_public_names())
