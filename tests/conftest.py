"""Tiny models of the real classes, built here with fixed seeds: nothing is downloaded."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def device() -> "torch.device":
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
