"""What a prompt costs: operations, cache bytes, seconds.

Nothing here knows how tokens are chosen; a `Pruner` is only asked for the seconds that its records hold.
"""

from vlprune.measure.flops import CONVENTIONS, Flops, LLMShape, llm_flops, paper_macs, vision_flops
from vlprune.measure.generate import Run, measure_generate
from vlprune.measure.latency import Clock, Latency
from vlprune.measure.memory import cache_bytes, kv_bytes

__all__ = [
    "CONVENTIONS",
    "Clock",
    "Flops",
    "LLMShape",
    "Latency",
    "Run",
    "cache_bytes",
    "kv_bytes",
    "llm_flops",
    "measure_generate",
    "paper_macs",
    "vision_flops",
]
