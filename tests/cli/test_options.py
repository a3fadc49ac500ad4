"""Methods, their presets, settings and budgets, from the text of their options: one syntax for all commands."""

import json

import pytest

from vlprune import Budget, FastV, PyramidDrop, Random, Script, SparseVLM, get_method, list_methods
from vlprune.cli.options import format_keep, parse_keep, parse_methods, parse_value

QUESTION = "how many dogs ?"


@pytest.fixture
def ask(run, photo, checkpoint):
    def call(*options):
        code, out, err = run("ask", photo, QUESTION, "--model", checkpoint, "--json", *options)
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


def test_a_preset_says_what_to_keep(ask):
    of_preset = ask("--method", "visionzip@16")
    assert (of_preset["method"], of_preset["keep"], of_preset["tokens"]["after"]) == ("visionzip@16", 16, 16)
    assert ask("--method", "visionzip@16:keep=8")["tokens"]["after"] == 8
    assert ask("--method", "visionzip@next-160")["keep"] == "32/tile"
    assert ask("--method", "visionzip", "--keep", "6/tile")["tokens"]["after"] == 6


def test_a_preset_and_a_setting(ask):
    """TRIM's adaptive preset chooses how many by itself; the setting switches that off again."""
    adaptive = ask("--method", "trim@adaptive")
    assert adaptive["tokens"]["after"] < 16
    assert ask("--method", "trim@adaptive:adaptive=false")["tokens"]["after"] == 16
    assert ask("--method", "trim:adaptive=True", "--keep", "1.0")["tokens"] == adaptive["tokens"]


def test_one_before_the_llm_and_one_inside_it(ask, run, photo, checkpoint):
    found = ask("--method", "script:tau=0.2,gamma=3+fastv:layer=1", "--keep", "8+4")
    tokens = found["tokens"]
    assert (tokens["entering"], tokens["after"], tokens["layer_average"], found["keep"]) == (8, 4, 6.0, "8+4")
    assert ask("--method", "script:keep=8,tau=0.2,gamma=3+fastv:keep=4:layer=1")["tokens"] == tokens
    _, out, _ = run("ask", photo, QUESTION, "--model", checkpoint, "--method", "fastv", "--keep", "4")
    assert "in the last layers (16 entered the LLM, whose layers saw 10.0 on average)" in " ".join(out.split())


def test_an_average_over_the_layers(ask):
    """Of two layers the first sees all 16, so that 10 on average leave 4 to the second."""
    found = ask("--method", "fastv", "--keep", "10/layer")
    assert (found["keep"], found["tokens"]["after"], found["tokens"]["layer_average"]) == ("10/layer", 4, 10.0)
    assert ask("--method", "script", "--keep", "10/layer")["tokens"]["after"] == 10


def test_without_the_question(ask):
    none, *asked = (ask("--method", f"script:relevance={kind}", "--keep", "4") for kind in ("none", "llm"))
    assert (none["tokens"]["relevance"], asked[0]["tokens"]["relevance"]) == (None, "llm")


KEEPS = {
    "64": 64,
    "0.5": 0.5,
    "32/tile": Budget(per_tile=32),
    "16/frame": Budget(per_frame=16),
    "16/frame/compete": Budget(per_frame=16, compete=True),
    "64/layer": Budget(layer_average=64),
    "64~0.05": Budget(adaptive=0.05, mean=64),
}


@pytest.mark.parametrize("text", KEEPS)
def test_budgets(text):
    assert parse_keep(text) == KEEPS[text]
    assert str(format_keep(Random(keep=parse_keep(text)))) == text


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("script", [Script(keep=9)]),
        (" script , random ", [Script(keep=9), Random(keep=9)]),
        ("script:fusion=filter,rho=0.5", [Script(keep=9, fusion="filter", rho=0.5)]),
        ("script:tau=0.2:rho=1,random", [Script(keep=9, tau=0.2, rho=1.0), Random(keep=9)]),
        ("script:tau=0.2, rho=1, random:seed=3", [Script(keep=9, tau=0.2, rho=1.0), Random(keep=9, seed=3)]),
        ("pyramiddrop:layers=2,6,15,random", [PyramidDrop(keep=9, layers=(2, 6, 15)), Random(keep=9)]),
        ("sparsevlm:before=300,0.5,recycle=0", [SparseVLM(keep=9, before=(300, 0.5), recycle=0.0)]),
        ("visionzip@64,script", [get_method("visionzip", preset="64"), Script(keep=9)]),
        ("sparsevlm@64:recycle=0.1", [get_method("sparsevlm", preset="64", recycle=0.1)]),
        ("script:keep=32/tile,random", [Script(keep=Budget(per_tile=32)), Random(keep=9)]),
        ("fastv:keep=64/layer", [FastV(keep=Budget(layer_average=64))]),
        ("script:keep=192,rho=1+fastv@64,random", [Script(192, rho=1.0) + get_method("fastv", preset="64"), Random(9)]),
        ("script:sign=-1,relevance=none", [Script(keep=9, sign=-1, relevance="none")]),
    ],
)
def test_lists_of_methods(text, methods):
    found = parse_methods(text, ["9"])
    assert [one for by_keep in found.values() for one in by_keep.values()] == methods


def test_every_budget_for_methods_that_say_none():
    found = parse_methods("script,visionzip@64,fastv@64", ["64", "8/tile"])
    assert {name: list(by_keep) for name, by_keep in found.items()} == {
        "script": ["64", "8/tile"],
        "visionzip@64": ["64"],
        "fastv@64": [str(30 / 576)],
    }
    assert list(parse_methods("all", ["64"])) == list_methods()
    assert [*parse_methods("all,random:seed=1", None)] == [*list_methods(), "random:seed=1"]
    assert parse_methods("script", None) == {"script": {"64": Script(keep=64)}}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("command", "count"),
    [
        (("compare", "PHOTO", QUESTION, "--model", "MODEL", "--repeats", "1", "--json"), 3),
        (("bench", "--model", "MODEL", "--repeats", "1", "--new", "2", "--json"), 3),
        (("eval", "--data", "DATA", "--model", "MODEL", "--json"), 3),
    ],
    ids=["compare", "bench", "eval"],
)
def test_all_commands_take_the_same_list(run, photo, checkpoint, tmp_path, command, count):
    """Settings with commas, a preset, two methods; budgets per tile and by layer."""
    (tmp_path / "own.jsonl").write_text(json.dumps({"image": photo, "question": QUESTION, "answer": "cat"}))
    words = {"PHOTO": photo, "MODEL": checkpoint, "DATA": "own.jsonl"}
    specs = "script:fusion=filter,rho=0.9,visionzip@next-160,script:keep=8+fastv:keep=4,layer=1"
    code, out, _ = run(*(words.get(word, word) for word in command), "--methods", specs, "--keep", "10/layer")
    assert code == 0
    found = json.loads(out)
    if command[0] == "compare":
        counts = {name: told["entering"] for name, told in found["methods"].items()}
    elif command[0] == "bench":
        counts = {row["method"].partition(", keep=")[0]: row["visual_tokens"] for row in found["rows"][1:]}
    else:
        scores = found["data"]["scores"] if "data" in found else found["scores"]
        counts = {name.rpartition("@")[0]: score["entering"] for name, score in scores.items() if "@" in name}
    assert counts == {
        "script:fusion=filter,rho=0.9": 10,
        "visionzip@next-160": 16,
        "script:keep=8+fastv:keep=4,layer=1": 8,
    }


@pytest.mark.usefixtures("undrawn")
def test_a_study_takes_the_same_list(program):
    """Script is compared with what is asked for; studies that compare their own say so."""
    words = ("--small", "--questions", "1", "--keep", "16", "--json", "--out", "run", "--methods")
    code, out, _ = program("study", "significance", *words, "script:fusion=filter,rho=0.9,visionzip@16")
    assert code == 0
    assert set(json.loads(out)["data"]["16"]) == {"script", "script:fusion=filter,rho=0.9", "visionzip@16"}
    code, _, err = program("study", "overlap", "--small", "--methods", "random")
    assert code == 2
    assert "--methods random: it goes with study significance or coverage; study overlap compares its own." in err


@pytest.mark.usefixtures("short_demo", "undrawn")
def test_demo_takes_the_same_method(program):
    code, out, _ = program(
        "demo", "--model", "pocket", "--method", "script:fusion=filter,rho=0.5", "--keep", "16/tile", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["method"], found["keep"]) == ("script:fusion=filter,rho=0.5", "16/tile")
    assert {answer["tokens"]["after"] for answer in found["questions"]} == {16}


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
