"""The kernels on a GPU; where there is none they are interpreted, all in one process, as it imports a lot first."""

import json
import os
import subprocess
import sys
import traceback

import pytest
import torch

from tests.cuda_graphs import test_fused_attention, test_fused_encoder, test_fused_norm_mlp, test_fused_patches
from tests.support.interpreter import look_once
from tests.support.versions import needs_interpreted_loops

COMPARE = {
    "attention": test_fused_attention.compare_kernel,
    "add and norm": test_fused_encoder.compare_kernel,
    "norm and gate": test_fused_norm_mlp.compare_kernels,
    "rotation": test_fused_patches.compare_kernel,
}


@pytest.fixture(scope="module")
def failures(device):
    """What failed in the interpreter, by name: that Triton interprets its kernels is decided when it is imported."""
    pytest.importorskip("triton")
    surroundings = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-m", __name__], env=surroundings, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [pytest.param("attention", marks=needs_interpreted_loops), *list(COMPARE)[1:]])
def test_the_kernel(name, device, request):
    if device.type == "cuda":
        COMPARE[name](torch.bfloat16, device)
        if name != "attention":
            COMPARE[name](torch.float16, device)
        return
    assert request.getfixturevalue("failures")[name] == ""


def interpret():
    look_once()
    failures = dict.fromkeys(COMPARE, "")
    for name, compare in COMPARE.items():
        try:
            compare(torch.float32, torch.device("cpu"))  # the interpreter has no bfloat16
        except Exception:
            failures[name] = traceback.format_exc()
    print(json.dumps(failures))


if __name__ == "__main__":
    interpret()
