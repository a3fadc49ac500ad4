"""One file per model family: where a model keeps its visual tokens and how they lie."""

from vlprune.models import llava as llava
from vlprune.models.base import (
    Family,
    TokenView,
    Vision,
    family_of,
    list_families,
    register_family,
)

__all__ = ["Family", "TokenView", "Vision", "family_of", "list_families", "register_family"]
