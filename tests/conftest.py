"""Tiny models of the real classes, built here with fixed seeds: nothing is downloaded."""

import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

torch = pytest.importorskip("torch")

#: Files that take longest, the longest first.
LONG = (
    "tests/test_readme.py",
    "tests/selection/test_fused.py",
    "tests/models/test_families.py",
    "tests/studies/test_studies.py",
    "tests/cli/test_families.py",
    "tests/pruning/test_compile.py",
    "tests/test_campaigns.py",
    "tests/pruning/layers/test_generate.py",
    "tests/methods/test_on_models.py",
    "tests/cli/test_refusals.py",
    "tests/test_docs.py",
    "tests/evaluation/test_prefix_cache.py",
    "tests/test_wheel.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let files begin in the order of the tests: left alone, xdist begins those with the most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first: two processes share the files, and neither is to wait for the other in the end."""
    order = {config.rootpath / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there now stays until the end: looking through it for garbage, again and again, takes seconds."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session", autouse=True)
def _no_seeds_for_cuda() -> "Iterator[None]":
    """Without a GPU each `torch.manual_seed` would write a stack down, for when CUDA begins: that takes 3 ms."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder with a LLaVA of 16 visual tokens."""
    from tests.support.llava_checkpoint import save_llava

    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def untemplated(tmp_path_factory):
    """The same, saved without a chat template."""
    from tests.support.llava_checkpoint import save_llava

    return save_llava(tmp_path_factory.mktemp("old"), None)


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A CLIP that the checkpoint's tower fits."""
    from tests.support.llava_checkpoint import save_clip

    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def photo(tmp_path_factory):
    import numpy as np
    from PIL import Image

    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.fixture(scope="session")
def film(tmp_path_factory):
    """60 frames of 64 x 48 pixels, each brighter than the one before."""
    import numpy as np

    from tests.support.films import write_film

    greys = [np.full((48, 64, 3), 4 * i, dtype=np.uint8) for i in range(60)]
    return write_film(tmp_path_factory.mktemp("film") / "film.mp4", greys)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the program in this process, in an empty folder: its exit code, output and errors."""
    from vlprune.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are empty files, where no test looks at them: to draw one takes longer than to answer."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **options: Path(path).touch())


@pytest.fixture
def short_demo(monkeypatch):
    """The demo asks one question about its drawn scene, the first that has a row of the picture, and not all."""
    from vlprune.evaluation import demo_scenes

    whole = demo_scenes.drawn_scene

    def with_one_question(number):
        scene = whole(number)
        return replace(scene, questions=[one for one in scene.questions if one.pictured][:1])

    monkeypatch.setattr(demo_scenes, "drawn_scene", with_one_question)


@pytest.fixture(scope="session")
def loaded(device):
    """The pocket model with its processor and dual encoder."""
    from vlprune import pocket
    from vlprune.evaluation.load_model import LoadedModel

    model, processor, clip = pocket.load()
    return LoadedModel("pocket", model.to(device), processor, clip.to(device))


@pytest.fixture(scope="session")
def questions():
    """Two questions of each kind of the pocket world."""
    from vlprune.evaluation.questions import pocket_questions

    return pocket_questions("validation", 2)


@pytest.fixture
def evaluation(loaded, questions, tmp_path):
    """The pocket model and these questions, with an empty run folder."""
    from vlprune.evaluation.answers import Evaluation
    from vlprune.evaluation.run_folder import RunFolder

    return Evaluation(loaded, questions, RunFolder(tmp_path / "run", "test", {}), batch=4, small=True)


@pytest.fixture
def program(capsys, monkeypatch, tmp_path, loaded):
    """Run the program in an empty folder, with the model loaded already: its exit code, output and errors."""
    from vlprune import pocket
    from vlprune.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pocket, "load", lambda: (loaded.model, loaded.processor, loaded.clip))

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call
