"""The fused kernels: where they are used, and that they choose what the torch functions choose.

The cases are in `fused_cases.py`, `ahead_cases.py` and `replay_cases.py`. On a GPU they run as they are. Without one
they run in Triton's interpreter, on small shapes, in a process of their own: the interpreter has to be switched on
before Triton is first imported.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.versions import needs_interpreter
from vlprune.selection import dispatch, select_script, use_fused

CASES = [Path(__file__).with_name(name) for name in ("fused_cases.py", "ahead_cases.py", "replay_cases.py")]


@needs_interpreter
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_fused_kernels():
    surroundings = {name: value for name, value in os.environ.items() if name != "VLPRUNE_FUSED"}
    if not torch.cuda.is_available():
        surroundings |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, CASES)]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, cwd=CASES[0].parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_nothing_of_it_is_imported_without_a_gpu():
    code = (
        "import sys, torch; from vlprune.selection import select_script\n"
        "select_script(torch.eye(4)[None], torch.ones(1, 1, 4), 2)\n"
        "assert not {'triton', 'vlprune.selection.fused'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_they_are_on_unless_switched_off():
    """As the environment says when the package is imported."""
    surroundings = {name: value for name, value in os.environ.items() if name != "VLPRUNE_FUSED"}
    code = (
        "import importlib, os; from vlprune.selection import dispatch\n"
        "print(dispatch._enabled)\n"
        "for os.environ['VLPRUNE_FUSED'] in '10':\n"
        "    print(importlib.reload(dispatch)._enabled)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]


def test_the_switch():
    class OnGpu:
        device, shape = torch.device("cuda", 0), (1, 2, 3)

    asked = []
    kernels = dispatch._kernels
    try:
        dispatch._kernels = lambda device: asked.append(device)
        with use_fused(True):
            dispatch.fused_for(OnGpu)
            with use_fused(False):
                dispatch.fused_for(OnGpu)
            dispatch.fused_for(OnGpu)
            dispatch.fused_for(torch.ones(1, 2, 3))
        with use_fused(False):
            dispatch.fused_for(OnGpu)
    finally:
        dispatch._kernels = kernels
    assert asked == [0, 0]


def raising(error):
    def fail(*args):
        raise error

    return fail


def test_where_kernels_cannot_run_torch_is_used_after_a_warning(monkeypatch):
    find = dispatch._kernels.__wrapped__
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(
        UserWarning, match=r"fused kernels are not used: Triton is not installed\. Selection runs in torch"
    ):
        assert find(0) is None
    triton = SimpleNamespace(__version__="3.3.1")  # which cannot compile the greedy
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: triton)
    monkeypatch.setattr(importlib, "import_module", lambda name: triton)
    with pytest.warns(UserWarning, match=r"they need Triton 3\.4 or newer"):
        assert find(0) is None
    triton.__version__ = "3.10.1+git"
    with pytest.warns(UserWarning, match="Tesla T4 is older than sm_80"):
        assert find(0) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(dispatch, "_build_one", lambda kernels, device: None)
    assert find(0) is triton
    monkeypatch.setattr(dispatch, "_build_one", raising(OSError(28, "No space left on device", "/cache/triton")))
    with pytest.warns(UserWarning, match=r"cannot be built \(\[Errno 28\] No space left on device: '/cache/triton'\)"):
        assert find(0) is None
    monkeypatch.setattr(dispatch, "_build_one", raising(RuntimeError("Failed to find C compiler.\nSet CC.")))
    with pytest.warns(
        UserWarning, match=r"^vlprune: .* cannot be built \(Failed to find C compiler\)\. Selection runs"
    ):
        assert find(0) is None
    monkeypatch.setattr(dispatch, "_build_one", raising(torch.OutOfMemoryError("busy")))
    with pytest.raises(torch.OutOfMemoryError):  # not for good
        find(0)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.warns(UserWarning, match="they need an NVIDIA GPU"):
        assert find(0) is None


def test_results_do_not_depend_on_the_switch_on_a_cpu():
    x, q = torch.randn(1, 9, 4), torch.randn(1, 2, 4)
    with use_fused(False):
        want = select_script(x, q, 3).kept
    assert torch.equal(select_script(x, q, 3).kept, want)
