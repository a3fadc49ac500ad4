"""Tiny models of the real classes, built here with fixed seeds: nothing is downloaded."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def device() -> "torch.device":
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> "Iterator[None]":
    """Most tensors here are so small that a second thread only waits, and the tests run in two processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
