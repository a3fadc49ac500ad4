"""These tests need lmms-eval, in an environment of its own: `make test-lmms-eval`."""

import os
from importlib.util import find_spec

import pytest

if find_spec("lmms_eval") is None:
    collect_ignore_glob = ["*.py"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    """A folder of tasks with local data in the shapes of POPE, GQA, TextVQA and MME, scored by lmms-eval itself."""
    from tests.integrations.lmms_eval.local_tasks import write_tasks

    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("datasets"))
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def pocket():
    """The pocket model, as the wrapper loads it."""
    from vlprune.evaluation.load_model import load_model

    return load_model("pocket", None, "cpu")
