"""LLaVA-1.5 and LLaVA-NeXT of published tokens and tiles, with hardly any width."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vlprune.measure import architectures

LAYERS = 16  # 576 tokens through one layer of 16 leave room for 64 on average
NARROW = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


@contextmanager
def narrow_architectures() -> Iterator[None]:
    """Make `get_architecture` and `build_text_tower` build small ones, inside the `with`."""
    with pytest.MonkeyPatch.context() as patch:
        for sizes, more in (
            (architectures.LLAMA_7B, {"num_hidden_layers": LAYERS, "num_key_value_heads": 2}),
            (architectures.CLIP_LARGE_336, {"num_hidden_layers": 3}),
            (architectures.CLIP_LARGE_TEXT, {"num_hidden_layers": 2, "projection_dim": 8}),
        ):
            for name, value in {**NARROW, **more}.items():
                patch.setitem(sizes, name, value)
        yield
