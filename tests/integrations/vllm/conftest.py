"""These tests need vLLM, in an environment of its own: `make test-integrations`."""

import os
from importlib.util import find_spec

import pytest

if find_spec("vllm") is None:
    collect_ignore_glob = ["*.py"]

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # an engine in this process starts fastest
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny LLaVA's checkpoint."""
    from tests.integrations.vllm import checkpoints

    return checkpoints.save("llava", tmp_path_factory.mktemp("checkpoints") / "llava")


@pytest.fixture(scope="module")
def processor(folder):
    from tests.integrations.vllm import checkpoints

    return checkpoints.reference(folder)[1]
