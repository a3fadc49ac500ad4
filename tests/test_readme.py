"""README's Python and its shell commands, run as they are written, in a folder that has what they name.

Hub ids are folders there with tiny models of the same classes and numbers of tokens. Commands between backticks in the
text made README's figures, for hours or on a GPU: `test_docs.py` checks that they exist.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib import metadata
from unittest import mock

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from transformers.utils import is_torchvision_available

from tests.support.films import write_film
from tests.support.llava_checkpoint import save_clip, save_llava
from tests.support.without_cuda import cuda_or_cpu
from tests.test_docs import FENCED, ROOT, blocks, commands_in
from vlprune import pocket
from vlprune.cli.app import main
from vlprune.evaluation.questions import pocket_questions
from vlprune.measure.efficiency import measure_efficiency

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
ALL_COMMANDS = [command for _, code in blocks(README, "bash") for command in commands_in(code.splitlines())]
COMMANDS = [command for command in ALL_COMMANDS if command[0] != "make"]
LLAVA, CLIP = "llava-hf/llava-1.5-7b-hf", "openai/clip-vit-large-patch14-336"
VIDEO = "llava-hf/llava-onevision-qwen2-7b-ov-hf"
QUESTION = "what digit is on the pink circle?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("readme")
    pocket.images(pocket.scenes("test", 1))[0].save(place / "photo.jpg")
    write_film(place / "clip.mp4", [np.full((48, 64, 3), 10 * i, dtype=np.uint8) for i in range(20)])
    (place / "photos").mkdir()
    pocket.images(pocket.scenes("test", 1))[0].save(place / "photos" / "kitchen.jpg")
    (line,) = re.findall(r"`(\{\"image\".*?\})`", TEXT)
    (place / "questions.jsonl").write_text(line + "\n", encoding="utf-8")
    shutil.copytree(ROOT / "models" / "photo" / "pictures", place / "models" / "photo" / "pictures")
    save_llava(place / LLAVA, side=24)
    save_clip(place / CLIP, side=24)
    return place


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_the_commands_are_found():
    """All that stand in blocks: nothing is run but `vlprune`, and `make`, which CI runs."""
    assert len(COMMANDS) >= 10
    assert {command[0] for command in ALL_COMMANDS} == {"vlprune", "make"}
    assert sum(code.count("vlprune ") for _, code in blocks(README, "bash")) == len(COMMANDS)
    assert {command[1] for command in COMMANDS} >= {"ask", "compare", "bench", "eval", "study", "report", "methods"}
    assert {language for language, _ in FENCED.findall(TEXT)} == {"python", "bash"}  # which are all that are run


@pytest.fixture
def few_repeats(monkeypatch):
    """`vlprune bench` times each row once, not ten times, and after no warm-up."""
    monkeypatch.setattr(
        "vlprune.measure.efficiency.measure_efficiency",
        lambda *args, **options: measure_efficiency(*args, **{**options, "repeats": 1, "warmup": 0}),
    )


@pytest.fixture
def few_questions(monkeypatch):
    """Two questions of each kind are drawn, also where a command or a study says more."""
    monkeypatch.setattr(
        "vlprune.evaluation.questions.pocket_questions",
        lambda split, count, *more: pocket_questions(split, min(count, 2), *more),
    )


@pytest.fixture
def loaded_once(monkeypatch, loaded):
    """The pocket model is not loaded again for each command."""
    monkeypatch.setattr(pocket, "load", lambda: (loaded.model, loaded.processor, loaded.clip))


@pytest.mark.usefixtures("few_repeats", "few_questions", "loaded_once")
@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_a_command_of_the_shell(here, command, capsys):
    """In README's order: some go on from what others wrote."""
    if VIDEO in command:
        if is_torchvision_available():
            pytest.skip("written for a machine without torchvision")
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.onevision", VIDEO, *command[1:]],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert "kept 256 of 400 visual tokens" in done.stdout
        return
    with pytest.raises(SystemExit) as end:
        main(command[1:])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert said.out


def test_the_first_block(here):
    """It is what earns the figures below it: the model's own CLIP, and the answer is right."""
    names = {}
    _, code = blocks(README, "python")[0]
    exec(compile(code, "README.md", "exec"), names)
    record, inputs = names["pruner"].last, names["inputs"]
    assert len(record.kept) == 64
    assert record.source == "clip"
    (scene,) = pocket.scenes("test", 1)
    (asked,) = [question for question in pocket.questions(scene) if question.text == QUESTION]
    new = names["out"][:, inputs["input_ids"].shape[1] :]
    assert names["processor"].batch_decode(new, skip_special_tokens=True)[0].strip() == asked.answer


def test_every_block_of_python_runs():
    """The two that the next tests run are all there are."""
    assert len(blocks(README, "python")) == 2


def test_the_block_for_an_own_model(here):
    """With CUDA graphs and a CLIP by its name; where there is no GPU, "cuda" is the CPU. It needs no accelerate."""
    names = {}
    _, code = blocks(README, "python")[1]
    without = mock.patch("transformers.integrations.accelerate.is_accelerate_available", return_value=False)
    with cuda_or_cpu(), without, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the graphs, where there is no GPU
        exec(compile(code, "README.md", "exec"), names)
    assert names["pruner"].last.source == "clip"
    assert len(names["pruner"].last.kept) == 64
    assert "generate" not in vars(names["model"])
    assert "cuda_graphs=True" in code


def test_ci_does_what_a_user_does(tmp_path):
    """It clones into a folder called vlprune, and runs README's two commands there, then the tests inside others."""
    origin = tmp_path / "origin"
    shutil.copytree(ROOT / ".ci", origin / ".ci")
    (origin / "Makefile").write_text("demo test test-integrations:\n\t@echo make $@ in $(notdir $(CURDIR))\n")
    git = ["git", "-C", origin, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    browser = tmp_path / "bin" / "chromium"  # so that none is installed
    browser.parent.mkdir()
    browser.write_text("")
    browser.chmod(0o755)
    env = {**os.environ, "PATH": f"{browser.parent}:{os.environ['PATH']}"}
    done = subprocess.run([origin / ".ci" / "run"], capture_output=True, text=True, check=True, env=env)
    made = [line for line in done.stdout.splitlines() if line.startswith("make ")]
    assert made[:2] == [f"{shlex.join(command)} in vlprune" for command in ALL_COMMANDS if command[0] == "make"]
    assert made[2:] == ["make test-integrations in vlprune"]


def test_the_oldest_python_that_is_promised():
    """The package asks for it, and no pin of `make`'s is too new for it, of those that are installed here."""
    oldest, _ = re.search(r"Python (3\.\d+) to (3\.\d+)", TEXT).groups()
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pins = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    environment, seen = {"python_version": oldest, "python_full_version": f"{oldest}.0"}, 0
    for pin in map(Requirement, pins):
        if pin.marker is not None and not pin.marker.evaluate(environment):
            continue
        for found in metadata.distributions(name=pin.name):
            if pin.specifier.contains(found.version):
                seen += 1
                assert oldest in SpecifierSet(found.metadata["Requires-Python"] or ""), pin
    here = [pin.specifier for pin in map(Requirement, pins) if pin.name == "transformers"]  # one for each Python
    if not any(pin.contains(metadata.version("transformers")) for pin in here):
        pytest.skip("this is not the environment that make installs")
    assert seen >= 8


def test_all_pythons_that_are_promised_are_tested():
    """By `make test-matrix`, from the oldest to the newest."""
    oldest, newest = (int(minor) for minor in re.search(r"Python 3\.(\d+) to 3\.(\d+)", TEXT).groups())
    (matrix,) = re.findall(r"^MATRIX \?= (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert [cell.partition("=")[0] for cell in matrix.split()] == [f"3.{i}" for i in range(oldest, newest + 1)]


def test_make_compiles_at_install():
    """What commands import, so that the first does not wait for it; and it is kept, whatever the machine says."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^\$\(STAMP\): .*\n((?:\t.*\n)+)", makefile, re.M)
    assert "pocket.load()" in recipe.partition('-e ".[dev]"')[2]
    assert "unexport PYTHONDONTWRITEBYTECODE" in makefile.splitlines()


def test_installing_is_described():
    """What pip brings, how to have less, and every extra."""
    told = " ".join(TEXT.split())
    assert "`pip install .`, which on Linux brings the CUDA build of torch, several gigabytes" in told
    assert "for a CPU, install torch's CPU build first" in told
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0].splitlines()
    names = {line.partition(" = ")[0] for line in extras} - {"dev"}
    assert len(names) >= 5
    assert [name for name in names if f"`.[{name}]`" not in told] == []


def test_own_data_is_described():
    """The format, answers as lists, and the scoring, in a section of its own; the tests above run its command."""
    section = TEXT.partition("\n## Check it on your data\n")[2].partition("\n## ")[0]
    for piece in ("vlprune eval --data questions.jsonl", '"answer": ["3", "three"]', "`exact`", "`contains`"):
        assert piece in section


def test_the_rule_for_the_picture_is_stated():
    (caption,) = re.findall(r"<img [^>]*>\n\n(.+?)\n\n", TEXT, re.S)
    assert "(of the first 21, the median by how well relevance finds what is asked)" in " ".join(caption.split())
    assert "relevance to the question, bright = relevant" in caption


def test_the_first_screen():
    """What it is and for whom, code, one picture, one table of at most six figures, what is missing; then the rest."""
    top = TEXT.partition("\n## ")[0]
    assert "vlprune drops them before the LLM pays for them" in top.split("\n\n")[1]
    assert "For engineers and researchers" in top
    assert len(top.split()) <= 800  # all else is for docs
    assert len(blocks(README, "python")[0][1].replace("\n\n", "\n").splitlines()) <= 7
    assert len(re.findall(r"<img |!\[", TEXT)) == 1
    assert top.count("```python") == 1
    _, rule, *rows = [line.strip("| ").split(" | ") for line in top.splitlines() if line.startswith("|")]
    assert set("".join(rule)) <= set(":-| ")
    figures = [cell for row in rows for cell in row[1:-1]]
    assert 1 <= len(figures) <= 6
    for figure in figures:  # the best, and in brackets that without graphs or CLIP
        assert re.fullmatch(r"(\*\*)?[\d.]+( %|×)( faster)?(\*\*)? \([\d.]+\)", figure), figure
    commands = [row[-1] for row in rows]
    assert all(re.fullmatch(r"`(vlprune|python) [^`]+`|the same", command) for command in commands)
    assert commands[0] != "the same"
    assert "**What it does not do yet**" in top


def row_of(page, table, *names):
    """The cells of a row, which begins with these names, of the table of a page whose head begins with that one."""
    body = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n| {table} |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in body.splitlines()]
    (found,) = [row for row in rows if row[: len(names)] == list(names)]
    return found


def test_figures_are_those_of_the_tables():
    """Those of README's table stand in `docs`."""

    def times(cell):
        return float(re.search(r"\(([\d.]+)×\)", cell)[1])

    lines = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("|")]
    right, token, prefill = ([re.findall(r"\d+\.\d+", cell) for cell in line[1:3]] for line in lines[2:])
    for i, (name, title) in enumerate({"script": "Script", "script_plus": "ScriptPlus"}.items()):
        scored = row_of("results.md", "method", f"**`{name}`**")
        assert scored[3].startswith(f"{right[i][0]} [")
        assert f"`{name}` {right[i][1]} " in (ROOT / "docs/results.md").read_text(encoding="utf-8")
        next_7b = "LLaVA-NeXT-7B, 2,880 → 320"
        first = [
            times(row_of("performance.md", f"{next_7b} | runs as", f"`{title}`", way)[-1])
            for way in ("graphs", "towers")
        ]
        assert token[i] == [f"{found:.1f}" for found in first]
        eager, graphs = map(times, row_of("performance.md", f"{next_7b} | FLOPs, T: here, *paper*", title)[2:4])
        assert prefill[i] == [f"{graphs:.1f}", f"{eager:.1f}"]


def test_performance_at_a_glance_is_what_its_tables_say():
    """Each pair of times or rates of docs/performance.md's first table, and how much faster, stands in a later one."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    _, first, later = page.partition("**At a glance**")[2].split("\n\n", 2)
    pairs = re.findall(r"([\d.]+) → ([\d.]+) \(\**([\d.]+×)\**\)", first)
    assert len(pairs) >= 20
    cells = {cell.strip() for line in later.splitlines() if line.startswith("|") for cell in line.split("|")}
    for whole, pruned, faster in pairs:
        assert {whole, f"{pruned} ({faster})"} <= cells
