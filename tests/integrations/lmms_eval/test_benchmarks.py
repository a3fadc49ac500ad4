"""What we say of lmms-eval's tasks is what its own task files say: datasets, splits, metrics."""

from pathlib import Path

import pytest
import yaml

from vlprune.studies.reproduction import BENCHMARKS, OTHER_SCORES

TASKS = {name: one for name, one in BENCHMARKS.items() if one.part_of is None}


class Loader(yaml.SafeLoader):
    """Reads task files without importing the functions they name."""


Loader.add_constructor("!function", lambda loader, node: node.value)


def read(path):
    """A task file, with what it includes."""
    found = yaml.load(path.read_text(), Loader)
    included = found.pop("include", None)
    return {**read(path.parent / included), **found} if included else found


@pytest.fixture(scope="module")
def files():
    """lmms-eval's task files by the task's name."""
    import lmms_eval

    found = {}
    for path in sorted((Path(lmms_eval.__file__).parent / "tasks").rglob("*.yaml")):
        for line in path.read_text(errors="replace").splitlines():
            key, _, name = line.partition(":")
            if key in ("task", "group") and name.strip(" \"'") in TASKS:
                found[name.strip(" \"'")] = path
    return found


@pytest.mark.parametrize("name", TASKS)
def test_datasets_splits_and_metrics(name, files):
    told = read(files[name])
    if "group" in told:  # of tasks that are alike
        told = read(files[name].with_name(f"{told['task'][0]}.yaml"))
    assert f"{told['dataset_path']}:{told['test_split']}" == TASKS[name].data
    assert told.get("output_type", "generate_until") == "generate_until"
    metrics = {one["metric"] for one in told["metric_list"]}
    others = [one for (_, task), one in OTHER_SCORES.items() if task == name]
    for one in (TASKS[name], *others):
        assert set(one.metrics) <= metrics
