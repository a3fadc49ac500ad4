"""`vlprune demo`: answers, costs and a picture."""

import json

import pytest
import torch
from PIL import Image

from vlprune import pocket


@pytest.fixture
def scene_size():
    (scene,) = pocket.scenes("test", 1, start=18)
    return len(pocket.questions(scene))


def test_demo(run, tmp_path, scene_size):
    torch.set_num_threads(2)
    code, out, err = run("demo", "--wide")
    assert torch.get_num_threads() == 1  # two of them wait for each other where the cores are busy
    assert (code, err) == (0, "vlprune: loading pocket, the small model that comes with vlprune ...\n")
    for piece in ("all 576", "64 of 576", "truth", "✓", "faster", "FLOPs", "cache", "vision", "prefill", "decode"):
        assert piece in out
    assert "wrote vlprune-demo.png" in out
    assert Image.open(tmp_path / "vlprune-demo.png").size[0] > 900
    assert out.count("?") == scene_size


def test_demo_as_json(run, tmp_path, scene_size):
    code, out, err = run(
        "demo", "--repeats", "1", "--json", "--out", "kept.svg", "--keep", "0.25", "--method", "dpp_only"
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
    from vlprune.evaluation.demo import DEMO_SCENE

    said = " ".join(run("demo", "--help")[1].split())
    assert f"if not said {DEMO_SCENE}, which is the middle one of the first 21" in said
