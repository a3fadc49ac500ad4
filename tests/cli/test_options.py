"""Settings, presets, and two methods, from the text of their options."""

import json

import pytest

from vlprune.cli.options import parse_value

QUESTION = "how many dogs ?"


@pytest.fixture
def ask(run, photo, checkpoint):
    def call(*options):
        code, out, err = run("ask", photo, QUESTION, "--model", checkpoint, "--json", *options)
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_a_preset_says_what_to_keep_unless_the_user_does(ask):
    of_preset = ask("--method", "visionzip", "--preset", "16")
    assert (of_preset["preset"], of_preset["keep"], of_preset["tokens"]["after"]) == ("16", 16, 16)
    assert ask("--method", "visionzip", "--preset", "16", "--keep", "8")["tokens"]["after"] == 8
    quota = ask("--method", "visionzip", "--preset", "next-160")
    assert quota["keep"] == {"per_tile": 32, "compete": False}
    assert ask("--method", "visionzip", "--preset", "next-160", "--per-tile", "6")["tokens"]["after"] == 6


def test_a_preset_and_a_setting(ask):
    """TRIM's adaptive preset chooses how many by itself; the setting switches that off again."""
    adaptive = ask("--method", "trim", "--preset", "adaptive")
    assert adaptive["tokens"]["after"] < 16
    assert ask("--method", "trim", "--preset", "adaptive", "--set", "adaptive=false")["tokens"]["after"] == 16
    assert ask("--method", "trim", "--keep", "1.0", "--set", "adaptive=True")["tokens"] == adaptive["tokens"]


def test_one_before_the_llm_and_one_inside_it(ask, run, photo, checkpoint):
    tokens = ask("--method", "script+fastv", "--keep", "8+4", "--set", "layer=1", "--set", "tau=0.2")["tokens"]
    assert (tokens["entering"], tokens["after"], tokens["layer_average"]) == (8, 4, 6.0)
    _, out, _ = run("ask", photo, QUESTION, "--model", checkpoint, "--method", "fastv", "--keep", "4")
    assert "in the last layers (16 entered the LLM, whose layers saw 10.0 on average)" in out


def test_values_are_of_the_fields_types():
    for text, hint, value in (
        ("3", int, 3),
        ("3", float, 3.0),
        ("none", int | None, None),
        ("-1", int | None, -1),
        ("2, 6,15", tuple[int, ...] | None, (2, 6, 15)),
        ("(2,)", tuple[int, ...] | None, (2,)),
        ("none", tuple[int, ...] | None, None),
        ("300,0.5", tuple[int | float, int | float] | None, (300, 0.5)),
        ("TRUE", bool, True),
        ("3", str, "3"),
    ):
        made = parse_value("", text, hint)
        assert (made, type(made)) == (value, type(value))
