"""What a prompt costs (operations, bytes of the KV cache, seconds), and how far a pruned output is from the whole one.

Nothing here knows how tokens are chosen; a `Pruner` is only asked for the seconds that its records hold.
"""

from vlprune.measure.discrepancy import FirstLogits, next_token_kl
from vlprune.measure.flops import CONVENTIONS, Flops, LLMShape, llm_flops, paper_macs, vision_flops
from vlprune.measure.generation_cost import GenerationCost, measure_generate
from vlprune.measure.latency import Clock, Latency
from vlprune.measure.memory import kv_bytes, kv_cache_bytes

__all__ = [
    "CONVENTIONS",
    "Clock",
    "FirstLogits",
    "Flops",
    "GenerationCost",
    "LLMShape",
    "Latency",
    "kv_bytes",
    "kv_cache_bytes",
    "llm_flops",
    "measure_generate",
    "next_token_kl",
    "paper_macs",
    "vision_flops",
]
