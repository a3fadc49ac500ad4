"""`vlprune demo`: answers, costs and a picture."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from vlprune import pocket
from vlprune.errors import UserError
from vlprune.evaluation import demo_scenes
from vlprune.evaluation.demo_scenes import DEMO_SCENE, PHOTO_SCENE


@pytest.fixture
def scene_size():
    (scene,) = pocket.scenes("test", 1, start=18)
    return len(pocket.questions(scene))


def test_demo(run, tmp_path, scene_size):
    torch.set_num_threads(2)
    code, out, err = run("demo", "--wide", "--model", "pocket")
    assert torch.get_num_threads() == 1  # two of them wait for each other where the cores are busy
    assert (code, err) == (0, "vlprune: loading pocket, a small model that comes with vlprune ...\n")
    for piece in ("all 576", "64 of 576", "truth", "✓", "faster", "FLOPs", "cache", "vision", "prefill", "decode"):
        assert piece in out
    assert "wrote vlprune-demo.png" in out
    assert Image.open(tmp_path / "vlprune-demo.png").size[0] > 900
    assert out.count("?") == scene_size


def test_demo_as_json(run, tmp_path, scene_size):
    code, out, err = run(
        *("demo", "--model", "pocket", "--repeats", "1", "--json", "--out", "kept.svg"),
        *("--keep", "0.25", "--method", "dpp_only"),
    )
    assert (code, err) == (0, "")
    found = json.loads(out)["questions"]
    assert len(found) == scene_size
    for row in found:
        assert row["all"]["right"] == (row["all"]["answer"] == row["truth"])
        assert row["all"]["visual_tokens"] == 576
        assert row["kept"]["visual_tokens"] == 144
        for part in ("prefill", "decode"):
            assert row["kept"]["llm_flops"][part] < row["all"]["llm_flops"][part]
        assert row["kept"]["kv_bytes"] < row["all"]["kv_bytes"]
        assert row["kept"]["seconds"]["selection"] > row["all"]["seconds"]["selection"] == 0
    assert sum(row["all"]["right"] for row in found) >= len(found) - 1
    assert "<svg" in (tmp_path / "kept.svg").read_text()


def test_the_rule_for_the_scene_is_stated(run):
    said = " ".join(run("demo", "--help")[1].split())
    assert f"if not said {PHOTO_SCENE} or {DEMO_SCENE}, the middle one of the first 21" in said


def test_a_photograph_where_the_photo_model_is(run, tmp_path, monkeypatch):
    whole = demo_scenes.photo_scene

    def one_card_and_one_thing(number, folder):
        scene = whole(number, folder)
        return replace(scene, questions=[scene.questions[1], scene.questions[4]])

    monkeypatch.setattr(demo_scenes, "photo_scene", one_card_and_one_thing)
    code, out, err = run("demo")
    assert (code, err) == (0, "vlprune: loading photo, a small model that comes with vlprune ...\n")
    assert out.count("?") == 2
    assert out.count("✓") == 4
    assert Image.open(tmp_path / "vlprune-demo.png").size[0] > 900


def test_a_drawn_scene_where_it_is_not(run, monkeypatch):
    monkeypatch.setattr("vlprune.pocket.photo_folder.find_folder", lambda: None)

    def load(name, *options):
        raise UserError(f"it was {name}")

    monkeypatch.setattr("vlprune.cli.demo.load_model", load)
    assert "it was pocket" in run("demo")[2]
    code, _, err = run("demo", "--model", "photo")
    assert (code, err) == (2, "vlprune: --model photo: there are no weights in models/photo beside the package.\n")


def test_other_models_have_no_demo(run):
    code, _, err = run("demo", "--model", "llava")
    assert code == 2
    assert "--model llava: the demo has pictures for 'photo' and 'pocket'; `vlprune ask` takes others." in err
