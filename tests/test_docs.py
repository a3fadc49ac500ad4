"""What the documents say can be done: their code runs, their commands exist, their links lead somewhere.

Here every Python block of every page in `docs` runs; README's code and commands do in `test_readme.py`. What the
examples of `docs/adding-a-*.md` compute is tested in `tests/pruning/test_docs.py`.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration
from transformers.utils import is_torchvision_available

from tests.support.llava_checkpoint import save_llava
from tests.support.registries import isolated_registries
from vlprune import Script, attach, pocket
from vlprune.cli.app import app, main
from vlprune.models import list_families

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODELS = ROOT / "docs" / "models.md"
RUN_ELSEWHERE = (ROOT / "README.md", MODELS)
PROGRAM = typer.main.get_command(app)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page, *languages):
    """The fenced blocks in these languages, each with the number of the line it begins on."""
    text = page.read_text(encoding="utf-8")
    found = [(text[: match.start(2)].count("\n"), *match.groups()) for match in FENCED.finditer(text)]
    return [(line, code) for line, language, code in found if language in languages]


def prose(page):
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def run_blocks(page, names, before=lambda code: None):
    """Run all Python blocks of a page in one namespace, and yield after each; errors name the page and its line."""
    for line, code in blocks(page, "python"):
        before(code)
        exec(compile("\n" * line + code, str(page), "exec"), names)
        yield code


def commands(page):
    """The shell commands of a page, in its blocks and between backticks, as lists of words."""
    lines = [line for _, code in blocks(page, "bash", "sh", "shell") for line in code.replace("\\\n", " ").splitlines()]
    yield from commands_in([*lines, *re.findall(r"`((?:vlprune|make|python) [^`]+)`", prose(page))])


def commands_in(lines):
    """The commands of lines of a shell, as lists of words."""
    for line in lines:
        command = []
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for word in [*words, ";"]:
            if set(word) <= set("();<>|&"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"\w+=", word):  # settings of the environment come before a command
                command.append(word)


def wrong(command):
    """What the program does not know of a command, or None."""
    program, *words = command
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        return next((word for word in words if "=" not in word and word not in targets), None)
    if program.endswith("python") and words[0].endswith(".py"):
        return wrong_for_script(*words)
    if program != "vlprune":
        return None
    known, path = PROGRAM, "vlprune"
    if words and not words[0].startswith("-"):
        path = words.pop(0)
        if path not in PROGRAM.commands:
            return path
        known = PROGRAM.commands[path]
    options = {name for parameter in known.params for name in parameter.opts} | {"-h", "--help"}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options]
    return unknown[0] if unknown else None


def wrong_for_script(script, *words):
    """The script if it is not there, or an option that it does not read, or None."""
    if not (ROOT / script).is_file():
        return script
    source = (ROOT / script).read_text(encoding="utf-8")
    if "parse_known_args" in source:  # the others go to another program
        return None
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return next((option for option in options if f'"{option}"' not in source), None)


def performance_names(folder):
    """A model of 576 visual tokens, and what its processor makes of a question about an image."""
    place = save_llava(folder, side=24)
    model, processor = LlavaForConditionalGeneration.from_pretrained(place), AutoProcessor.from_pretrained(place)
    inputs = processor(images=Image.new("RGB", (99, 99)), text="USER: <image> what is it ?", return_tensors="pt")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"model": model.to(device), "processor": processor, "inputs": inputs.to(device)} | IMPORTED


IMPORTED = {"attach": attach, "Script": Script}
#: What the pages' blocks take for granted; all others stand on their own.
GIVEN = {"performance.md": performance_names}
#: What a page's blocks are to leave behind.
LEFT = {
    "method.md": lambda names: names["chosen"].kept.shape == (1, 64),
    "methods.md": lambda names: names["VisionZip"] is not None,
    "performance.md": lambda names: names["out"].shape[1] > 576,
}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN_ELSEWHERE], ids=lambda page: page.name)
def test_the_code_runs(page, tmp_path, monkeypatch):
    """Whatever is added to a page runs here, or fails here; of the pocket world's scenes a few."""
    drawn = pocket.scenes
    monkeypatch.setattr(pocket, "scenes", lambda seed, n, **more: drawn(seed, min(n, 12), **more))
    names = {"__name__": "example"} | GIVEN.get(page.name, lambda folder: {})(tmp_path)
    with isolated_registries(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of CUDA graphs, where there is no GPU
        for _ in run_blocks(page, names):
            pass
    assert LEFT.get(page.name, lambda names: True)(names)


#: LLaVA-NeXT, LLaVA-OneVision, Video-LLaVA, InternVL, Qwen2.5-VL, LLaVA-1.5 and many questions: visual tokens, those
#: that are kept, structure before and after, and whose embeddings measure relevance, with their sign.
RECORDS = [
    [405, 320, [18, 18], "llm", 1],
    [200, 128, [1, 1], "clip", 1],
    [288, 256, [8, 8], "llm", 1],
    [144, 128, [0, 0], "llm", 1],
    [25, 6, [0, 0], "llm", 1],
    [576, 64, [0, 0], "clip", -1],
    [576, 64, [0, 0], "llm", 1],
]


@pytest.mark.skipif(is_torchvision_available(), reason="written for a machine without torchvision")
def test_the_code_of_models_runs(tmp_path):
    """In a process of its own, with a stand-in for torchvision."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.documented_models", str(MODELS)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] == RECORDS
    assert len(found["answers"]) == 2


@each_page
def test_commands_exist(page):
    assert [(shlex.join(command), wrong(command)) for command in commands(page) if wrong(command)] == []


def test_commands_are_found():
    """That the test above sees what it should see, and knows what is not there."""
    found = list(commands(ROOT / "README.md"))
    for command in (["make", "demo"], ["vlprune", "models"], ["vlprune", "--help"]):
        assert command in found
    assert any(command[:2] == ["vlprune", "ask"] and "--show" in command for command in found)
    for line, word in {
        "vlprune ask a.png 'what is --this?' --keep=3 --json": None,
        "vlprune aks a.png": "aks",
        "vlprune demo --kep 3": "--kep",
        "vlprune --verbose": "--verbose",
        "make tea": "tea",
        "python benchmarks/prefill.py --models llava-1.5-7b --ways eager": None,
        "python benchmarks/prefil.py": "benchmarks/prefil.py",
        "python benchmarks/prefill.py --way eager": "--way",
    }.items():
        assert wrong(shlex.split(line)) == word


@each_page
def test_links_lead_to_files(page):
    targets = [re.split(r"[\s#]", target)[0] for target in re.findall(r"\]\(([^)]+)\)", prose(page))]
    inside = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    assert [target for target in inside if not (page.parent / target).exists()] == []


def test_the_table_of_models(capsys):
    """docs/models.md has the table that `vlprune models` prints."""
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").replace("`", "")
    with pytest.raises(SystemExit):
        main(["models"])
    printed = capsys.readouterr().out
    for family in list_families():
        classes = ", ".join(family.classes) or "any other with image placeholders"
        positions = ", ".join(family.positions)
        cells = (family.name, classes, family.prunes, positions, family.relevance, family.tested)
        assert f"| {' | '.join(cells)} |" in text
        for cell in ("positions", family.name, *family.positions, *family.classes):
            assert cell in printed
