"""A tab of the browser, without the browser: what each action gives."""

import copy
import json
import threading

import pytest
from PIL import Image

from vlprune import FastV, Random, Script
from vlprune.cli.app import main
from vlprune.cli.options import parse_method
from vlprune.errors import UserError
from vlprune.studio.takeaway import long_python_code, method_code, python_code
from vlprune.studio.visit import Asked, Visit


@pytest.fixture
def run_code(tmp_path, monkeypatch, capsys):
    """Run Python as a program of its own would, but that what is imported need not be again: the lines it prints."""
    monkeypatch.chdir(tmp_path)

    def call(code):
        capsys.readouterr()
        exec(compile(code, "code", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out.splitlines()

    return call


@pytest.fixture
def asked(drawn):
    return Asked(drawn[1].text, "script", 32)


def test_look_and_play(visit, asked):
    look = visit.select(asked)
    assert look.sentence.startswith("Kept 32 of 576 visual tokens. Chosen in ")
    assert look.overlays == ["kept", "order of choice", "relevance", "redundancy"]
    choices = look.choices
    assert 32 <= choices < 64  # the greedy stops when the graph has left it enough
    assert look.tokens == 576
    assert look.canvas.count('class="kept"') == 32
    assert visit.look("kept", 3).canvas.count('class="gone"') == 573
    assert visit.look("kept", choices).canvas.count('class="kept"') == 32
    assert visit.look("relevance", choices).overlay == "relevance"
    assert visit.select(asked._replace(keep=8)).overlay == "relevance"  # it stays what it was
    assert visit.select(asked._replace(method="random")).overlay == "kept"  # which has no relevance


def test_a_method_that_says_what_to_keep_overrules_the_slider(visit, asked):
    assert visit.select(asked._replace(method="script:keep=5")).canvas.count('class="kept"') == 5
    assert visit.select(asked._replace(method="visionzip@64")).canvas.count('class="kept"') == 64


def test_two_tokens(visit, asked):
    visit.select(asked)
    assert "Pick two tokens" in visit.pick(3)
    said = visit.pick(40)
    assert "<b>3</b> and <b>40</b>" in said
    assert f"{visit.session.pair(asked.question, 3, 40).cosine:.3f}" in said
    assert "<b>40</b> and <b>42</b>" in visit.pick(42)
    assert "same side" in visit.pair()


def test_explain_follows_the_picked_token(visit, asked):
    visit.select(asked)
    visit.pick(77)
    html = visit.explain()
    assert html.count("<li>") == 5
    assert "<b>Token 77</b>" in html
    visit.select(asked._replace(method="random"))
    assert "random is chosen above" in visit.explain()


def test_ask_both_ways(visit, asked, drawn):
    visit.select(asked)
    *_, (answers, costs) = visit.ask(asked)
    assert answers.count("<h3>") == 2
    assert costs.count("<tr ") == 8
    assert ">576<" in costs
    assert ">32<" in costs


def test_compare(visit, asked):
    visit.select(asked)
    *_, html = visit.compare(asked, ["script", "random", "sparsevlm"])
    assert html.count("vlp-answer") >= 4
    assert "IoU" in html
    assert ">1.00<" in html
    for names in (["script"], ["script"] * 7):
        with pytest.raises(UserError, match="compare 2 to 6 of them"):
            next(visit.compare(asked, names))


def test_words_are_escaped(visit, asked):
    hostile = asked._replace(question="<script>alert(1)</script> $x$ & {{7}}")
    visit.select(hostile)
    *_, (answers, _) = visit.ask(hostile)
    assert "<script>" not in answers + visit.explain() + visit.look().canvas


def test_sentences_are_those_of_the_command_line(visit, asked, scene_file, capsys):
    for method, keep in (("script:keep=1000", None), ("skript", "32"), ("script:tau=3", "32")):
        more = ["--keep", keep] if keep else []
        with pytest.raises(SystemExit):
            main(["ask", str(scene_file), asked.question, "--method", method, *more])
        said = capsys.readouterr().err.splitlines()[-1].removeprefix("vlprune: ")
        with pytest.raises(UserError) as raised:
            visit.select(asked._replace(method=method))
        assert str(raised.value) == said


def test_nothing_is_there_before_the_first_choice(visit, asked):
    assert "Upload an image" in visit.look().canvas
    for action in (visit.explain, visit.code):
        with pytest.raises(UserError, match="nothing is chosen yet"):
            action()


def test_a_copy_has_seen_nothing(visit, asked):
    visit.select(asked)
    other = copy.deepcopy(visit)
    assert not other.has_image
    assert other.session.loaded is visit.session.loaded
    with pytest.raises(UserError, match="there is no image yet"):
        other.explain()


def test_the_same_file_again_forgets_nothing(visit, asked, scene_file):
    visit.select(asked)
    visit.pick(3)
    visit.open(str(scene_file))
    assert "<b>3</b> and <b>4</b>" in visit.pick(4)
    visit.open(None)
    assert not visit.has_image


def test_files_and_code_reproduce_the_screen(visit, asked, tmp_path, run_code):
    visit.select(asked)
    list(visit.ask(asked))
    kept = json.loads(visit.files(tmp_path)[-1].read_text())["tokens"]["kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "image.png",
        "kept.png",
        "kept.svg",
        "record.json",
        "scene.png",
    ]
    assert Image.open(tmp_path / "kept.png").width > 500
    code, line = visit.code()
    answer, tokens = run_code(code)
    assert json.loads(tokens) == kept
    assert answer == json.loads((tmp_path / "record.json").read_text())["answer"]
    assert line.endswith("--method script --keep 32 --show kept.png")


def test_the_command_line_reproduces_the_screen(visit, asked, tmp_path, program):
    import shlex

    visit.select(asked)
    list(visit.ask(asked))
    visit.files(tmp_path)
    kept = json.loads((tmp_path / "record.json").read_text())
    words = shlex.split(visit.code()[1])[1:]
    code, out, err = program(*words[:-2], "--json")
    assert code == 0, err
    assert json.loads(out)["tokens"]["kept"] == kept["tokens"]["kept"]
    assert json.loads(out)["answer"] == kept["answer"]


def test_code_without_a_chat_template_runs_too(untemplated, photo, tmp_path, run_code):
    from vlprune.evaluation.load_model import load_model

    visit = Visit(load_model(untemplated, None, "cpu"), threading.Lock(), parse_method)
    visit.open(photo)
    visit.select(Asked("how many dogs ?", "script", 4))
    visit.files(tmp_path)
    kept = json.loads((tmp_path / "record.json").read_text())["tokens"]["kept"]
    code, _ = visit.code()
    assert json.loads(run_code(code)[-1]) == [kept]


def test_a_named_dual_encoder_is_in_code_and_command(loaded, scene_file, asked):
    visit = Visit(loaded, threading.Lock(), parse_method, "some/clip")
    visit.open(str(scene_file))
    visit.select(asked)
    code, line = visit.code()
    assert "dual_encoder='some/clip'" in code
    assert "--dual-encoder some/clip" in line


def test_code_for_a_video_is_python():
    code = long_python_code("some/model", "video.mp4", "what?", Script(keep=8))
    compile(code, "code", "exec")
    assert "read_clip('video.mp4', 16)" in code


def test_code_puts_the_pocket_model_where_it_was_asked():
    """The test above runs it on the machine's own device."""
    on_gpu = python_code("pocket", "image.png", "what?", Script(keep=8), device="cuda")
    assert '\nmodel, clip = model.to("cuda"), clip.to("cuda")\nwith attach(' in on_gpu
    compile(on_gpu, "code", "exec")
    assert ".to(" not in python_code("pocket", "image.png", "what?", Script(keep=8))


def test_code_for_other_models_is_python():
    code = python_code("some/model", "image.png", 'what\'s "it"?', Script(8) + FastV(keep=4))
    compile(code, "code", "exec")
    assert "Script(keep=8) + FastV(keep=4)" in code
    assert method_code(Random(keep=3, seed=2)) == "Random(keep=3, seed=2)"
