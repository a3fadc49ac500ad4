"""`vlprune scene`, and what the pocket model says about images and questions that are not of its world."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from vlprune import pocket
from vlprune.pocket.render import images

LIMIT = "the pocket model knows only drawn scenes of coloured shapes with digits"


def test_a_scene_and_what_to_ask(program, tmp_path):
    code, out, err = program("scene", "-o", "my scene.png", "--number", "3")
    assert (code, err) == (0, "")
    (scene,) = pocket.scenes("test", 1, start=3)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "my scene.png")), np.asarray(images([scene])[0]))
    for question in pocket.questions(scene):
        assert question.text in out
        assert f"({question.answer})" in out
    assert max(map(len, out.splitlines())) <= 80
    # the command that it prints gives the answer that it printed, without a warning
    command = shlex.split(out.splitlines()[-1].removeprefix("Try: "))
    assert command[0] == "vlprune"
    code, answered, err = program(*command[1:])
    assert code == 0
    assert LIMIT not in err
    truth = next(question.answer for question in pocket.questions(scene) if question.text == command[-1])
    assert truth in answered.splitlines()


def test_a_scene_replaces_only_what_we_made(program, tmp_path):
    assert program("scene")[0] == 0
    assert program("scene", "--number", "1")[0] == 0  # our own
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    code, out, err = program("scene", "-o", "photo.png")
    assert (code, out) == (2, "")
    assert err == (
        "vlprune: 'photo.png' is there already and was not made by vlprune: choose another name, or add --force.\n"
    )
    assert Image.open(tmp_path / "photo.png").size == (8, 8)
    assert program("scene", "-o", "photo.png", "--force")[0] == 0
    assert Image.open(tmp_path / "photo.png").size == (192, 192)
    assert program("scene", "-o", "scene.jpg")[2] == "vlprune: 'scene.jpg': a scene's name must end in .png.\n"


@pytest.mark.parametrize("command", ["ask", "compare"])
def test_an_own_image_gives_one_warning(program, photo, command):
    options = {"ask": [], "compare": ["--methods", "random", "--repeats", "1"]}[command]
    code, out, err = program(command, photo, "what is the man holding?", *options, "--json")
    assert code == 0
    json.loads(out)
    warnings = [line for line in err.splitlines() if LIMIT in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("vlprune: ")
    for piece in ("unlike", "'man', 'holding'", "`vlprune scene`", "--model photo or llava-hf/llava-1.5-7b-hf"):
        assert piece in warnings[0]


def test_no_answer_is_said(program, tmp_path, monkeypatch):
    program("scene")
    monkeypatch.setattr("vlprune.cli.ask.decode_answer", lambda loaded, run: "")
    code, out, err = program("ask", "scene.png", "what color is the star?")
    assert code == 0
    assert "(nothing)" in out.splitlines()
    assert f"{LIMIT}; it gave no answer: " in err


def test_other_models_are_not_warned_about(run, photo, checkpoint):
    _, _, err = run("ask", photo, "what is the man holding ?", "--model", checkpoint, "--keep", "4", "--json")
    assert LIMIT not in err
