"""These tests need vLLM, in an environment of its own: `make test-integrations`."""

import os
from importlib.util import find_spec

if find_spec("vllm") is None:
    collect_ignore_glob = ["*.py"]

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # an engine in this process starts fastest
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
