"""Prometheus counters: visual tokens before and after pruning, and the seconds that choosing them took."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _metrics() -> dict[str, Any]:
    from prometheus_client import Counter

    return {
        "before": Counter(
            "vlprune_visual_tokens_before", "Visual tokens of images and videos, unpruned.", ["modality"]
        ),
        "after": Counter("vlprune_visual_tokens_after", "Visual tokens that are left of them.", ["modality"]),
        "seconds": Counter("vlprune_selection_seconds", "Seconds that workers spent on choosing tokens."),
        "encoded": Counter("vlprune_images_encoded", "Images and videos that a vision tower encoded."),
        "reused": Counter("vlprune_images_reused", "Images and videos whose encoding was still in a worker's cache."),
    }


def count_tokens(modality: str, before: int, after: int) -> None:
    """Count the visual tokens of one image or video, in the process that reads requests."""
    _metrics()["before"].labels(modality).inc(before)
    _metrics()["after"].labels(modality).inc(after)


def count_images(encoded: int, reused: int) -> None:
    """Count images and videos that a worker had to encode, and those that it had in its cache."""
    _metrics()["encoded"].inc(encoded)
    _metrics()["reused"].inc(reused)


def count_seconds(seconds: float) -> None:
    """Count the seconds that a worker spent on choosing tokens."""
    _metrics()["seconds"].inc(seconds)
