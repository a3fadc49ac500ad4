"""All methods side by side: `vlprune compare`, and what `vlprune methods` says of each."""

import io
import json
import sys

import pytest
from PIL import Image

from vlprune import get_method, list_methods

QUESTION = "how many dogs ?"
INSIDE = [name for name in list_methods() if hasattr(get_method(name), "stages")]


@pytest.fixture
def compare(run, photo, checkpoint):
    def call(*options, model=checkpoint):
        return run("compare", photo, QUESTION, "--model", model, "--keep", "4", "--repeats", "1", *options)

    return call


def test_each_method_answers_as_when_asked_alone(run, photo, checkpoint, compare, tmp_path):
    code, out, err = compare("--json", "--max-new-tokens", "5")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found["methods"]) == list_methods()
    assert found["vision_seconds"] > 0
    for name, told in found["methods"].items():
        ask = ("ask", photo, QUESTION, "--model", checkpoint, "--keep", "4", "--max-new-tokens", "5", "--json")
        alone = json.loads(run(*ask, "--method", name)[1])
        assert (name, told["answer"], told["tokens"]) == (name, alone["answer"], alone["tokens"])
        assert told["entering"] == (16 if name in INSIDE else 4)
        assert told["layer_average"] >= 4.0
        parts = [told["seconds"][part] for part in ("question", "selection", "prefill", "decode", "rest")]
        assert told["seconds"]["total"] == pytest.approx(sum(parts))
        assert told["kv_bytes"] < found["all"]["kv_bytes"]
    assert found["all"]["entering"] == 16
    assert found["all"]["layer_average"] == 16.0
    assert Image.open(tmp_path / "vlprune-compare.png").width > 1000


def test_all_tokens_are_the_plain_model(compare, photo, checkpoint):
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    model = LlavaForConditionalGeneration.from_pretrained(checkpoint).eval()
    processor = AutoProcessor.from_pretrained(checkpoint)
    inputs = processor(images=Image.open(photo), text=f"USER: <image>\n{QUESTION} ASSISTANT:", return_tensors="pt")
    new = model.generate(**inputs, max_new_tokens=6, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    plain = processor.batch_decode(new, skip_special_tokens=True)[0].strip()
    found = json.loads(compare("--json", "--max-new-tokens", "6", "--methods", "random")[1])
    assert found["all"]["answer"] == plain


def test_the_tower_sees_the_image_once_for_all_methods(compare, monkeypatch):
    from vlprune.cli import app as cli

    calls = []

    def load(*args, **options):
        loaded = cli_load(*args, **options)
        loaded.model.model.vision_tower.register_forward_hook(lambda *call: calls.append(1))
        return loaded

    cli_load = cli.load
    monkeypatch.setattr(cli, "load", load)
    assert compare("--methods", "script,visionzip,random,trim,attention_top_k")[0] == 0
    assert len(calls) == 3  # the plain model warms up and runs; all the others together


def test_in_words(compare, tmp_path):
    code, out, err = compare("--methods", "trim, random", "--show", "kept.svg")
    assert (code, err) == (0, "")
    for piece in ("all tokens", "16.0", "trim", "random", "4.0", "entering", "layer average", "ran once for all"):
        assert piece in " ".join(out.split())
    assert "script" not in out
    assert out.endswith("wrote kept.svg\n")
    assert "<svg" in (tmp_path / "kept.svg").read_text()


def test_a_clip_is_read_once(compare, clip, monkeypatch):
    from vlprune.pruning import question as query

    read, load = [], query.load_dual_encoder
    monkeypatch.setattr(query, "load_dual_encoder", lambda given, *more: read.append(given) or load(given, *more))
    found = json.loads(compare("--methods", "script,cdpruner", "--clip", clip, "--json")[1])["methods"]
    assert [told["tokens"]["relevance"] for told in found.values()] == ["clip", "clip"]
    assert [given for given in read if isinstance(given, str)] == [clip]


def test_what_cannot_run_is_listed_with_the_reason(compare, monkeypatch):
    from vlprune.models.llava import Projected

    monkeypatch.setattr(Projected, "attention_module", lambda *args: None)
    names = ("--methods", "visionzip,random")
    code, out, err = compare(*names)
    assert (code, err) == (0, "")
    assert "cannot run: visionzip needs the attention inside" in out
    found = json.loads(compare(*names, "--json")[1])["methods"]
    assert list(found["visionzip"]) == ["reason"]
    assert found["visionzip"]["reason"].endswith("which this model did not give.")
    assert found["random"]["tokens"]["after"] == 4
    code, out, err = compare("--methods", "visionzip")
    assert (code, out) == (2, "")
    assert err.startswith("vlprune: visionzip needs the attention")


def test_a_bar_while_running(compare, monkeypatch):
    """Where somebody looks; what is piped elsewhere stays clean."""

    class Screen(io.StringIO):
        looked_at = True

        def isatty(self):
            return self.looked_at

    for Screen.looked_at in (True, False):
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        assert compare("--methods", "divprune,random")[0] == 0
        assert ("random" in screen.getvalue()) == Screen.looked_at


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--methods", "random,skript"), "did you mean 'script'?"),
        (("--methods", " , "), "--methods is empty"),
        (("--keep", "17"), "--keep 17: the image has only 16 visual tokens."),
        (("--keep", "many"), "--keep many: pass a number"),
        (("--show", "out.txt"), "must end in .png"),
        (("--repeats", "0"), "--repeats"),
        (("--method", "random"), "did you mean --methods?"),
        (("--clip", "someone/clip"), "--clip someone/clip"),
    ],
)
def test_refusals(compare, options, says):
    code, out, err = compare(*options)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert says in err


def test_images_only(run, film):
    code, _, err = run("compare", film, QUESTION)
    assert code == 2
    assert "is not an image" in err
    assert "question is empty" in run("compare", film, " ")[2]


def test_on_the_pocket_model(run, tmp_path):
    from vlprune import pocket
    from vlprune.pocket.render import images

    (scene,) = pocket.scenes("test", 1, start=3)
    images([scene])[0].save(tmp_path / "scene.png")
    question = pocket.questions(scene)[0]
    some = ("--methods", "script,uniform_grid,visionzip", "--repeats", "1", "--keep", "0.25", "--json")
    found = json.loads(run("compare", "scene.png", question.text, *some)[1])
    assert found["all"]["answer"] == question.answer
    assert found["keep"] == 0.25
    assert [told["entering"] for told in found["methods"].values()] == [144] * 3


# --- the list -------------------------------------------------------------------------------------------------------


def rows(width):
    from rich.console import Console

    from vlprune.cli.tables import needs_table, settings_table

    console = Console(width=width, record=True, file=io.StringIO())
    methods = [get_method(name, keep=64) for name in list_methods()]
    console.print(needs_table(methods, n=576, layers=32))
    console.print(settings_table(methods))
    return console.export_text()


@pytest.mark.parametrize("width", [100, 120])
def test_the_tables_fit(width):
    text = rows(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for name in list_methods():
        assert text.count(f" {name} ") >= 2


def test_what_methods_need_and_do():
    told = {}
    for line in rows(120).splitlines():
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        if len(cells) == 8:
            told[cells[0]] = cells[1:]
    assert sorted(told) == list_methods()
    for name, (asks, tower, llm, merges, reorders, entering, average) in told.items():
        method = get_method(name, keep=64)
        assert (asks == "yes", tower == "yes") == (method.needs_query, method.needs_attention)
        assert (llm == "yes") == (asks == "by LLM") == (name in INSIDE)
        assert (merges == "yes") == (name in ("average_pool", "trim", "visionzip", "sparsevlm"))
        assert (reorders == "yes") == method.reorders
        assert int(entering) == (576 if name in INSIDE else 64)
        assert (float(average) > 64) == (name in INSIDE)


def test_settings_and_presets_are_listed_as_they_are_typed(run):
    _, out, _ = run("methods")
    for piece in ("tau=0.3", "adaptive=false", "contextual=none", "presets: 192, 128, 64, 32, 16"):
        assert piece in out


# --- settings, presets, and two methods -----------------------------------------------------------------------------


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


def test_values_are_of_the_fields_types():
    from vlprune.cli.app import _typed

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
        made = _typed("", text, hint)
        assert (made, type(made)) == (value, type(value))


def test_one_before_the_llm_and_one_inside_it(ask, run, photo, checkpoint):
    tokens = ask("--method", "script+fastv", "--keep", "8+4", "--set", "layer=1", "--set", "tau=0.2")["tokens"]
    assert (tokens["entering"], tokens["after"], tokens["layer_average"]) == (8, 4, 6.0)
    _, out, _ = run("ask", photo, QUESTION, "--model", checkpoint, "--method", "fastv", "--keep", "4")
    assert "in the last layers (16 entered the LLM, whose layers saw 10.0 on average)" in out
