"""README's Python and its shell commands, run as they are written, in a folder that has what they name.

Hub ids are folders there with tiny models of the same classes and numbers of tokens. Commands between backticks in the
text made README's figures, for hours or on a GPU: `test_docs.py` checks that they exist.
"""

import os
import re
import shlex
import subprocess
import sys
import warnings

import numpy as np
import pytest
from transformers.utils import is_torchvision_available

from tests.support.films import write_film
from tests.support.llava_checkpoint import save_clip, save_llava
from tests.support.without_cuda import cuda_or_cpu
from tests.test_docs import ROOT, blocks, commands_in
from vlprune import pocket
from vlprune.cli.app import main

README = ROOT / "README.md"
COMMANDS = [
    command for _, code in blocks(README, "bash") for command in commands_in(code.splitlines()) if command[0] != "make"
]
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
    (line,) = re.findall(r"`(\{\"image\".*?\})`", README.read_text(encoding="utf-8"))
    (place / "questions.jsonl").write_text(line + "\n", encoding="utf-8")
    save_llava(place / LLAVA, side=24)
    save_clip(place / CLIP, side=24)
    return place


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_the_commands_are_found():
    assert len(COMMANDS) >= 10
    assert {command[1] for command in COMMANDS} >= {"ask", "compare", "bench", "eval", "study", "report", "methods"}


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
    """With CUDA graphs and a CLIP by its name; where there is no GPU, "cuda" is the CPU."""
    names = {}
    _, code = blocks(README, "python")[1]
    with cuda_or_cpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the graphs, where there is no GPU
        exec(compile(code, "README.md", "exec"), names)
    assert names["pruner"].last.source == "clip"
    assert len(names["pruner"].last.kept) == 64
    assert "generate" not in vars(names["model"])
    assert "cuda_graphs=True" in code
