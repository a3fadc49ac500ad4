"""One file per model family: where a model keeps its visual tokens and how they lie."""

from vlprune.models import generic as generic
from vlprune.models import internvl as internvl
from vlprune.models import llava as llava
from vlprune.models import llava_next as llava_next
from vlprune.models import llava_onevision as llava_onevision
from vlprune.models import qwen_vl as qwen_vl
from vlprune.models import video_llava as video_llava
from vlprune.models.base import Family, Stream, Vision, family_of, list_families, register_family
from vlprune.types import Part, Shape, TokenView, squares, stacked

__all__ = [
    "Family",
    "Part",
    "Shape",
    "Stream",
    "TokenView",
    "Vision",
    "family_of",
    "list_families",
    "register_family",
    "squares",
    "stacked",
]
