"""Tiny models of the real classes, built here with fixed seeds: nothing is downloaded."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

os.environ.setdefault("HF_HUB_OFFLINE", "1")

torch = pytest.importorskip("torch")

from tests.support.films import write_film  # noqa: E402
from tests.support.llava_checkpoint import save_clip, save_llava  # noqa: E402
from vlprune import pocket  # noqa: E402
from vlprune.cli.app import main  # noqa: E402
from vlprune.evaluation.answers import Bench  # noqa: E402
from vlprune.evaluation.load_model import Loaded  # noqa: E402
from vlprune.evaluation.questions import pocket_items  # noqa: E402
from vlprune.evaluation.run_folder import Run  # noqa: E402


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


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder with a LLaVA of 16 visual tokens."""
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def untemplated(tmp_path_factory):
    """The same, saved without a chat template."""
    return save_llava(tmp_path_factory.mktemp("old"), None)


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A CLIP that the checkpoint's tower fits."""
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="session")
def film(tmp_path_factory):
    """60 frames of 64 x 48 pixels, each brighter than the one before."""
    greys = [np.full((48, 64, 3), 4 * i, dtype=np.uint8) for i in range(60)]
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4", greys)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the program in this process, in an empty folder: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call


@pytest.fixture(scope="session")
def loaded(device):
    model, processor, clip = pocket.load()
    return Loaded("pocket", model.to(device), processor, clip.to(device))


@pytest.fixture(scope="session")
def items():
    return pocket_items("validation", 2)


@pytest.fixture
def bench(loaded, items, tmp_path):
    return Bench(loaded, items, Run(tmp_path / "run", "test", {}), batch=4, small=True)


@pytest.fixture
def program(capsys, monkeypatch, tmp_path, loaded):
    """Run the program in an empty folder, with the model loaded already: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pocket, "load", lambda: (loaded.model, loaded.processor, loaded.clip))

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call
