"""The pruned model classes, by the names that vLLM's registry knows. Imported by vLLM when a model is asked for."""

from typing import Any

from vllm.model_executor.models import interns1, llava, llava_next, llava_onevision, qwen2_5_vl, qwen2_vl, qwen3_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from vlprune.integrations.vllm import families
from vlprune.integrations.vllm.model import PrunedGridModel, PrunedModel
from vlprune.integrations.vllm.processor import PrunedInfo, PrunedProcessor
from vlprune.integrations.vllm.settings import PREFIX


def pruned(model: Any, info: Any, processor: Any, dummy_inputs: Any, served: families.ServedFamily) -> Any:
    """vLLM's `model` class with pruning in front of it, and in front of its processor."""
    grid = isinstance(served, families.QwenVL)
    before = PrunedGridModel if grid else PrunedModel
    made = type(PREFIX + model.__name__, (before, model), {"served": served, "__module__": __name__})
    processors = type(PREFIX + processor.__name__, (PrunedProcessor, processor), {"served": served})
    infos = type(PREFIX + info.__name__, (PrunedInfo, info), {})
    return MULTIMODAL_REGISTRY.register_processor(processors, info=infos, dummy_inputs=dummy_inputs)(made)


PrunedLlavaForConditionalGeneration = pruned(
    llava.LlavaForConditionalGeneration,
    llava.LlavaProcessingInfo,
    llava.LlavaMultiModalProcessor,
    llava.LlavaDummyInputsBuilder,
    families.LLAVA,
)
PrunedLlavaNextForConditionalGeneration = pruned(
    llava_next.LlavaNextForConditionalGeneration,
    llava_next.LlavaNextProcessingInfo,
    llava_next.LlavaNextMultiModalProcessor,
    llava.LlavaDummyInputsBuilder,
    families.LLAVA_NEXT,
)
PrunedLlavaOnevisionForConditionalGeneration = pruned(
    llava_onevision.LlavaOnevisionForConditionalGeneration,
    llava_onevision.LlavaOnevisionProcessingInfo,
    llava_onevision.LlavaOnevisionMultiModalProcessor,
    llava_onevision.LlavaOnevisionDummyInputsBuilder,
    families.LLAVA_ONEVISION,
)
PrunedInternVLForConditionalGeneration = pruned(
    interns1.InternS1ForConditionalGeneration,
    interns1.InternS1ProcessingInfo,
    interns1.InternS1MultiModalProcessor,
    interns1.InternS1DummyInputsBuilder,
    families.INTERNVL,
)
PrunedQwen2VLForConditionalGeneration = pruned(
    qwen2_vl.Qwen2VLForConditionalGeneration,
    qwen2_vl.Qwen2VLProcessingInfo,
    qwen2_vl.Qwen2VLMultiModalProcessor,
    qwen2_vl.Qwen2VLDummyInputsBuilder,
    families.QWEN2_VL,
)
PrunedQwen2_5_VLForConditionalGeneration = pruned(
    qwen2_5_vl.Qwen2_5_VLForConditionalGeneration,
    qwen2_5_vl.Qwen2_5_VLProcessingInfo,
    qwen2_5_vl.Qwen2_5_VLMultiModalProcessor,
    qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder,
    families.QWEN2_5_VL,
)
PrunedQwen3VLForConditionalGeneration = pruned(
    qwen3_vl.Qwen3VLForConditionalGeneration,
    qwen3_vl.Qwen3VLProcessingInfo,
    qwen3_vl.Qwen3VLMultiModalProcessor,
    qwen3_vl.Qwen3VLDummyInputsBuilder,
    families.QWEN3_VL,
)
