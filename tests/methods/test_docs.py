"""docs/methods.md says of every method what is so."""

import re
from pathlib import Path

import pytest

from vlprune.methods import InLLMMethod, get_method, list_methods

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]
TABLE = {line[0].strip("`"): line[1:] for line in LINES if len(line) == 9}


@pytest.mark.parametrize("name", list_methods())
def test_the_table_of_methods(name):
    kind, yes = type(get_method(name)), {True: "yes", False: "–"}
    name_of_class, question, tower, _, training_free, merges, order, _ = TABLE[name]
    assert name_of_class == f"`{kind.__name__}`"
    asked = "by the LLM" if issubclass(kind, InLLMMethod) else yes[kind.needs_query]
    assert (question, tower) == (asked, yes[kind.needs_attention])
    assert (training_free, merges) == ("yes", yes[kind.merges])
    assert (order == "as in the image") == (not kind.reorders)


def test_the_examples_run():
    names = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(code, names)
    assert names["get_method"]("visionzip", preset="64") == names["VisionZip"](keep=64, contextual=10)


def test_the_presets_of_visionzip():
    for preset, settings in type(get_method("visionzip")).presets.items():
        if preset.isdigit():
            assert f'| `"{preset}"` | {settings["keep"] - settings["contextual"]} | {settings["contextual"]} |' in TEXT
        assert f'`"{preset}"`' in TEXT
