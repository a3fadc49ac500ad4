"""Two tensor-parallel workers give what one gives. (Two data-parallel engines: test_server.py.)"""

import json
import subprocess
import sys

import pytest

from tests.integrations.vllm import checkpoints, engine, server
from tests.integrations.vllm.two_workers import asks
from vlprune import get_method


@pytest.mark.parametrize(("family", "name"), [("llava", "visionzip"), ("qwen2_5_vl", "script")])
def test_two_tensor_parallel_workers_equal_attach(tmp_path, family, name):
    folder = checkpoints.save(family, tmp_path / family)
    limits = {"image": 1} if family == "llava" else {"image": 1, "video": 0}
    run = subprocess.run(
        [sys.executable, "-m", "tests.integrations.vllm.two_workers", folder, name],
        input=json.dumps(limits),
        capture_output=True,
        text=True,
        env=server.environment(VLLM_CPU_OMP_THREADS_BIND="nobind"),
        cwd=server.ROOT,
        timeout=900,
    )
    found = [line for line in run.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert found, run.stdout[-3000:] + run.stderr[-3000:]
    want = [engine.expected(folder, get_method(name, keep=6), ask) for ask in asks()]
    assert json.loads(found[0].removeprefix("ANSWERS ")) == [want, want]
