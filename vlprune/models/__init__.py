"""One file per model family: where a model keeps its visual tokens and how they lie."""

from vlprune.models import generic as generic
from vlprune.models import internvl as internvl
from vlprune.models import llava as llava
from vlprune.models import llava_next as llava_next
from vlprune.models import llava_onevision as llava_onevision
from vlprune.models import qwen_vl as qwen_vl
from vlprune.models import video_llava as video_llava
from vlprune.models.base import EncodedImage, Family, Modality
from vlprune.models.registry import family_of, list_families, register_family

__all__ = [
    "EncodedImage",
    "Family",
    "Modality",
    "family_of",
    "list_families",
    "register_family",
]
