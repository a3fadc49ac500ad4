"""What the page's events send back, without a browser."""

import threading

import pytest

from vlprune import pocket


@pytest.fixture
def visit(tmp_path):
    from vlprune.cli.options import parse_method
    from vlprune.evaluation.load_model import load_model
    from vlprune.studio.visit import Visit

    path = tmp_path / "scene.png"
    pocket.images(pocket.scenes("test", 1))[0].save(path)
    visit = Visit(load_model("pocket", None, "cpu"), threading.Lock(), parse_method)
    visit.open(str(path))
    return visit


def test_choosing_again_does_not_take_back_a_click_on_another_map(visit):
    import gradio as gr

    from vlprune.studio.page import _choose

    question = "what digit is on the pink circle?"
    first = _choose(visit, question, "script", 64)[2]
    assert first["choices"] == ["kept", "order of choice", "relevance", "redundancy"]
    assert _choose(visit, question, "script", 32)[2] == gr.skip()
    assert _choose(visit, question, "random", 32)[2]["value"] == "kept"  # which has no relevance
