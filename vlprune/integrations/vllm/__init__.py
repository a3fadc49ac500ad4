"""Pruning inside vLLM: a plug-in that vLLM finds by itself once vlprune is installed beside it.

Put `Pruned` before the architecture's name and say what to keep:

    vllm serve llava-hf/llava-1.5-7b-hf --hf-overrides \\
      '{"architectures": ["PrunedLlavaForConditionalGeneration"], "vlprune": {"method": "script", "keep": 64}}'

or, in Python, `LLM(model, hf_overrides=overrides(Script(keep=64)))`. Without that nothing changes. Nothing here imports
vLLM before vLLM asks for it. See docs/serving.md.
"""

from vlprune.integrations.vllm.checkpoint import save_for_vllm
from vlprune.integrations.vllm.plugin import ARCHITECTURES, TESTED_VERSIONS
from vlprune.integrations.vllm.settings import overrides

__all__ = ["ARCHITECTURES", "TESTED_VERSIONS", "overrides", "save_for_vllm"]
