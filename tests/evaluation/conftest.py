"""The pocket model, a few of its questions, and the program in this process."""

import pytest

from vlprune import pocket
from vlprune.cli import main
from vlprune.loading import Loaded
from vlprune.studies.bench import Bench
from vlprune.studies.items import pocket_items
from vlprune.studies.run import Run


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
