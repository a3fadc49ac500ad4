"""`vlprune compare`: all methods side by side."""

import io
import json
import sys
from functools import cache

import pytest
from PIL import Image

from vlprune import get_method, list_methods
from vlprune.evaluation.load_model import load_model

QUESTION = "how many dogs ?"
INSIDE = [name for name in list_methods() if hasattr(get_method(name), "cut_schedule")]


@pytest.fixture
def compare(run, photo, checkpoint):
    def call(*options, model=checkpoint):
        return run("compare", photo, QUESTION, "--model", model, "--keep", "4", "--repeats", "1", *options)

    return call


def test_each_method_answers_as_when_asked_alone(run, photo, checkpoint, compare, monkeypatch, tmp_path):
    monkeypatch.setattr("vlprune.cli.ask.load_model", cache(load_model))  # or else it is loaded for each method
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
    calls = []

    def load(*args, **options):
        loaded = load_model(*args, **options)
        loaded.model.model.vision_tower.register_forward_hook(lambda *call: calls.append(1))
        return loaded

    monkeypatch.setattr("vlprune.cli.compare.load_model", load)
    assert compare("--methods", "script,visionzip,random,trim,attention_top_k")[0] == 0
    assert len(calls) == 3  # the plain model warms up and runs; all the others together


def test_in_words(compare, tmp_path):
    code, out, err = compare("--methods", "trim, random", "--show", "kept.svg", "--wide")
    assert (code, err.count("\n"), err[:17]) == (0, 1, "vlprune: loading ")
    for piece in ("all tokens", "16.0", "trim", "random", "4.0", "entering", "average", "ran once for all"):
        assert piece in " ".join(out.split())
    assert "script" not in out
    assert out.endswith("wrote kept.svg\n")
    assert "<svg" in (tmp_path / "kept.svg").read_text()


def test_a_clip_is_read_once(compare, clip, monkeypatch):
    from vlprune.pruning import dual_encoder, question

    read, load = [], dual_encoder.load_dual_encoder
    for module in (dual_encoder, question):
        monkeypatch.setattr(module, "load_dual_encoder", lambda given, *more: read.append(given) or load(given, *more))
    found = json.loads(compare("--methods", "script,cdpruner", "--dual-encoder", clip, "--json")[1])["methods"]
    assert [told["tokens"]["relevance"] for told in found.values()] == ["clip", "clip"]
    assert [given for given in read if isinstance(given, str)] == [clip]


def test_what_cannot_run_is_listed_with_the_reason(compare, monkeypatch):
    from vlprune.models.llava import ClipLikeFamily

    monkeypatch.setattr(ClipLikeFamily, "attention_module", lambda *args: None)
    names = ("--methods", "visionzip,random")
    code, out, err = compare(*names)
    assert (code, err.count("\n"), err[:17]) == (0, 1, "vlprune: loading ")
    answers = [line.split("│")[2].strip() for line in out.splitlines() if line.count("│") == 7]
    assert "cannot run: visionzip needs the attention inside" in " ".join(answers)
    found = json.loads(compare(*names, "--json")[1])["methods"]
    assert list(found["visionzip"]) == ["keep", "reason"]
    assert found["visionzip"]["reason"].endswith("which this model did not give.")
    assert found["random"]["tokens"]["after"] == 4
    code, out, err = compare("--methods", "visionzip")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("vlprune: visionzip needs the attention")


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
        (("--dual-encoder", "someone/clip"), "--dual-encoder someone/clip"),
    ],
)
def test_refusals(compare, options, says):
    code, out, err = compare(*options)
    assert (code, out) == (2, "")
    assert len([line for line in err.splitlines() if not line.endswith(" ...")]) == 1
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
    assert [told["keep"] for told in found["methods"].values()] == [0.25] * 3
    assert [told["entering"] for told in found["methods"].values()] == [144] * 3
