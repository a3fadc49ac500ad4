"""Every mistake ends with code 2 and one plain sentence, and nothing on the standard output."""

import shutil
import sys
from pathlib import Path

import pytest


def test_no_such_file(refused):
    assert "there is no file 'none.png'" in refused("ask", "none.png", "what is it?")


@pytest.mark.parametrize("address", ["https://example.org/a.png", "http://example.org/a.mp4", "s3://bucket/a.png"])
def test_an_address(refused, address):
    sentence = f"{address!r} is an address, and only files are read: download it first."
    assert sentence in refused("ask", address, "what is it?")


def test_a_folder(refused, tmp_path):
    assert "is not a file" in refused("ask", tmp_path, "what is it?")


def test_not_an_image(refused, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    assert "is not an image" in refused("ask", "text.png", "what is it?")


def test_a_truncated_image(refused, tmp_path, photo):
    data = Path(photo).read_bytes()
    (tmp_path / "half.png").write_bytes(data[: len(data) // 2])
    assert "truncated" in refused("ask", "half.png", "what is it?")


def test_an_enormous_image(refused, tmp_path):
    (tmp_path / "bomb.png").write_bytes(b"P6 50000 50000 255\n" + b"\0" * 100)
    assert "too large" in refused("ask", "bomb.png", "what is it?")


@pytest.mark.parametrize(
    "keep", ["0", "-3", "0.0", "-0.5", "1.5", "nan", "inf", "many", "", "8~", "~0.1", "8~2", "0~0.1"]
)
def test_keep_that_means_nothing(refused, photo, keep):
    assert f"--keep {keep}" in refused("ask", photo, "what is it?", "--keep", keep)
    assert f"--keep {keep}" in refused("demo", "--keep", keep)


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ("16~", "write a number of tokens before ~ and a share behind it: 64~0.05."),
        ("~0.1", "write a number of tokens before ~ and a share behind it: 64~0.05."),
        ("8~2", "a share must lie in [0, 1]."),
        ("0~0.1", "at least one token must be kept."),
    ],
)
def test_keep_with_a_share(refused, photo, keep, says):
    assert refused("ask", photo, "what is it?", "--keep", keep) == f"vlprune: --keep {keep}: {says}"


def test_keep_more_than_there_are(refused, photo, checkpoint):
    sentence = refused("ask", photo, "what is it?", "--model", checkpoint, "--keep", "17")
    assert "--keep 17: the image has only 16 visual tokens" in sentence
    assert "--keep 577: the image has only 576" in refused("demo", "--model", "pocket", "--keep", "577")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--keep", "4", "--method", "visionzip@64"), "--keep 4 and --method visionzip@64 contradict each other"),
        (("--keep", "4", "--method", "script:keep=3"), "contradict each other: script says what to keep."),
        (("--keep", "2/frame"), "--keep 2/frame is not for an image: say 2/tile."),
        (("--keep", "0/tile"), "--keep 0/tile: at least one token must be kept."),
        (("--keep", "many/tile"), "--keep many/tile: write a number of tokens before /tile."),
        (("--keep", "2/image"), "--keep 2/image: write it as 32/tile, 16/frame, 64/layer, or 32/tile/compete."),
        (("--keep", "2/tile/all"), "write it as 32/tile"),
        (("--keep", "2/layer/compete"), "write it as 32/tile"),
        (("--frames", "4"), "--frames 4 goes with a video, whose name ends in .mp4"),
    ],
)
def test_budgets_that_contradict_themselves(refused, photo, options, says):
    assert says in refused("ask", photo, "what is it?", *options)


def test_videos(refused, film, checkpoint, tmp_path, monkeypatch):
    assert "--keep 2/tile is not for a video: say 2/frame." in refused("ask", film, "what is it?", "--keep", "2/tile")
    assert "--frames" in refused("ask", film, "what is it?", "--frames", "0")
    assert "there is no file 'none.mp4'" in refused("ask", "none.mp4", "what is it?")
    (tmp_path / "text.mp4").write_text("hello")
    assert "is not a video" in refused("ask", "text.mp4", "what is it?")
    for model in ("pocket", checkpoint):
        assert f"--model {model} takes images only" in refused("ask", film, "what is it?", "--model", model)
    monkeypatch.setitem(sys.modules, "av", None)
    assert "pip install 'vlprune[video]'" in refused("ask", film, "what is it?")


def test_unknown_method(refused, photo):
    assert "did you mean 'script'?" in refused("ask", photo, "what is it?", "--method", "skript")
    assert "choose from" in refused("ask", photo, "what is it?", "--method", "zzz")


def test_lists_of_methods(refused, photo):
    """The sentence names --methods, and the setting as it was typed behind the method's name."""
    for command in (("compare", photo, "what is it?"), ("eval",), ("bench",)):
        assert "--methods skript: no such method; did you mean 'script'?" in refused(*command, "--methods", "skript")
        assert "--methods random+script: " in refused(*command, "--methods", "random+script", "--keep", "9+8")
    for spec, says in {
        "script:tua=1": "script has no such setting; did you mean 'tau'?",
        "script:tau": "write it as NAME=VALUE.",
        "script:keep=0": "at least one token must be kept.",
        "script:gamma=high": "it must be a number.",
        "script:tau=2.0": "a cosine, from -1 to 1.",
    }.items():
        assert f"--methods {spec}: {says}" in refused("eval", "--methods", f"random,{spec}")


def test_unknown_option(refused, photo):
    assert "did you mean --keep?" in refused("ask", photo, "what is it?", "--kep", "3")
    assert "did you mean --version?" in refused("--versoin")
    assert "did you mean ask?" in refused("aks", photo, "what is it?")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("tua=0.2", "did you mean 'tau'?"),
        ("tau=high", "a cosine from -1 to 1, or 'otsu' or 'quantile'"),
        ("gamma=high", "--method script:gamma=high: it must be a number."),
        ("tau=2", "from -1 to 1"),
        ("fusion=sum", "choose from 'released'"),
        ("fusion=3", "choose from 'released'"),
        ("sign=up", "--method script:sign=up: it must be a whole number or none."),
        ("sign=1.5", "it must be a whole number or none"),
        ("tau", "NAME=VALUE"),
        ("keep=many", "--method script:keep=many: pass a number of tokens (64)"),
    ],
)
def test_settings(refused, photo, setting, says):
    assert says in refused("ask", photo, "what is it?", "--method", f"script:{setting}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("visionzip@65",), "--method visionzip@65: visionzip has no such preset; did you mean '64'?"),
        (("visionzip@paper",), "choose from 192, 128, 64"),
        (("random@64",), "--method random@64: random has no such preset; it has none."),
        (("visionzip@64:keep=8",), "--method visionzip@64: contextual=10: must be less than the 8"),
        (("visionzip@64:contextual=64",), "--method visionzip@64:contextual=64: must be less than the 64"),
        (("visionzip:contextual=99",), "--method visionzip:contextual=99: must be less than the 64"),
        (("trim:adaptive=maybe",), "--method trim:adaptive=maybe: it must be true or false."),
        (("uniform_grid:tau=1",), "--method uniform_grid:tau=1: uniform_grid has no such setting; choose from keep."),
        (("script,random",), "--method script,random: name one method; `vlprune compare` takes several."),
        (("script,tau=0.2",), "--method script,tau=0.2: settings go behind a colon: script:NAME=VALUE."),
        (("relevance_top_k:relevance=none",), "relevance_top_k ranks by relevance alone"),
        (("script+random",), "say what each of them is to keep, such as --keep 192+64."),
        (("script+random", "--keep", "64"), "say what each of them is to keep"),
        (("script+fastv@64",), "say what each of them is to keep"),
        (("script+random", "--keep", "9+x"), "--keep x: pass a number"),
        (("script+random", "--keep", "9+8"), "the first method must choose before the LLM, and the second one inside"),
        (("script+random:sed=1", "--keep", "9+8"), "did you mean 'seed'?"),
        (("script+randon", "--keep", "9+8"), "did you mean 'random'?"),
        (("script", "--keep", "9+8"), "--keep 9+8: pass a number"),
    ],
)
def test_presets_and_two_methods(refused, photo, options, says):
    assert says in refused("ask", photo, "what is it?", "--method", *options)


def test_what_the_model_does_not_give(refused, photo, checkpoint, monkeypatch):
    from vlprune.models.llava import ClipLikeFamily

    monkeypatch.setattr(ClipLikeFamily, "attention_module", lambda *args: None)
    sentence = refused("ask", photo, "what?", "--model", checkpoint, "--keep", "4", "--method", "visionzip")
    assert "--method visionzip: visionzip needs the attention inside the vision tower" in sentence


def test_missing_and_empty(refused, photo):
    assert "QUESTION" in refused("ask", photo)
    assert "question is empty" in refused("ask", photo, "  ")


def test_a_question_with_a_placeholder(refused, photo):
    assert "'<image>', which stands for an image" in refused("ask", photo, "is <image> red?")
    assert "'<video>', which stands for a video" in refused("ask", photo, "is <video> red?")
    assert "max-new-tokens" in refused("ask", photo, "what?", "--max-new-tokens", "0")


def test_hub_that_cannot_be_reached(refused, photo):
    sentence = refused("ask", photo, "what is it?", "--model", "llava-hf/llava-1.5-7b-hf")
    assert "the hub cannot be reached" in sentence


@pytest.mark.parametrize(
    ("name", "says"), [("GatedRepoError", "must be asked for"), ("RepositoryNotFoundError", "has no such model")]
)
def test_hub_that_says_no(refused, photo, monkeypatch, name, says):
    import huggingface_hub.errors
    from transformers import PreTrainedConfig

    kind = getattr(huggingface_hub.errors, name)

    def refuse(*args, **kwargs):
        raise OSError("no") from kind.__new__(kind)

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", refuse)
    assert says in refused("ask", photo, "what is it?", "--model", "someone/something")


@pytest.mark.parametrize("out", ["picture.txt", "picture", "no/folder/picture.png"])
def test_a_picture_that_cannot_be_written(refused, photo, out):
    refused("ask", photo, "what is it?", "--show", out)
    refused("demo", "--out", out)


def test_a_picture_in_place_of_a_folder(refused, photo, tmp_path):
    (tmp_path / "out.png").mkdir()
    assert "cannot be written" in refused("ask", photo, "what is it?", "--show", "out.png")


@pytest.fixture
def own(tmp_path, photo):
    """A photograph of the user's, in the folder where the program runs, and what it holds."""
    path = tmp_path / "own.png"
    shutil.copy(photo, path)
    return path, path.read_bytes()


@pytest.mark.parametrize("command", ["ask", "compare"])
@pytest.mark.parametrize("out", ["own.png", "./own.png", "linked.png", "hard.png"])
def test_an_input_is_never_an_output(refused, own, tmp_path, command, out):
    (tmp_path / "linked.png").symlink_to("own.png")
    (tmp_path / "hard.png").hardlink_to(own[0])
    for force in ((), ("--force",)):
        sentence = refused(command, "own.png", "what is it?", "--show", out, *force)
        assert "is read by this command" in sentence
    assert own[0].read_bytes() == own[1]


@pytest.mark.usefixtures("short_demo")
@pytest.mark.parametrize(
    "command",
    [
        ("ask", "PHOTO", "what is it?", "--model", "MODEL", "--keep", "4", "--show"),
        ("compare", "PHOTO", "what is it?", "--model", "MODEL", "--keep", "4", "--methods", "random", "--show"),
        ("demo", "--model", "pocket", "--out"),
    ],
    ids=lambda command: command[0],
)
def test_a_file_of_another_program_stays(run, refused, own, photo, checkpoint, command):
    words = [{"PHOTO": photo, "MODEL": checkpoint}.get(word, word) for word in command]
    assert "was not made by vlprune: choose another name, or add --force." in refused(*words, "own.png")
    assert own[0].read_bytes() == own[1]
    assert run(*words, "own.png", "--force")[0] == 0
    assert own[0].read_bytes() != own[1]
    assert run(*words, "own.png")[0] == 0  # now it is ours


@pytest.mark.parametrize("ending", ["png", "jpg", "pdf", "svg"])
def test_a_picture_of_ours_is_made_anew(run, photo, checkpoint, ending):
    ask = ("ask", photo, "what is it?", "--model", checkpoint, "--keep", "4", "--show", f"kept.{ending}")
    for _ in range(2):
        assert run(*ask)[0] == 0


def test_figures_of_another_program_stay(run, refused, checkpoint, tmp_path):
    bench = ("bench", "--model", checkpoint, "--keep", "4", "--repeats", "1", "--new", "2")
    for name in ("own.json", "own.md"):
        (tmp_path / name).write_text("mine")
        assert "was not made by vlprune" in refused(*bench, "--out", name)
        for force in (("--force",), ()):
            assert run(*bench, "--out", name, *force)[0] == 0
    config = Path(checkpoint) / "config.json"
    assert "is read by this command" in refused(*bench, "--out", config, "--force")


def test_what_our_own_models_and_a_finished_run_are_read_from(refused, tmp_path, monkeypatch):
    """Also where the command says a model's name and not its folder."""
    monkeypatch.setattr("vlprune.pocket.photo_folder.find_folder", lambda: tmp_path / "own/photo")
    monkeypatch.setattr("vlprune.pocket.path", lambda: str(tmp_path / "own/pocket"))
    for name, words in {
        "own/photo/pictures/cat.jpg": ("demo",),
        "own/photo/config.json": ("bench", "--model", "photo"),
        "own/pocket/config.json": ("bench",),
        "run/result.json": ("bench", "--paper", "llava-next-7b", "--accuracy", "run"),
    }.items():
        own = tmp_path / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("its own")
        assert "is read by this command" in refused(*words, "--out", own, "--force")
        assert own.read_text() == "its own"


def test_devices(refused, photo):
    assert "no such device" in refused("ask", photo, "what is it?", "--device", "teapot")
    assert "CUDA devices" in refused("ask", photo, "what is it?", "--device", "cuda:99")


def test_clip(refused, photo, checkpoint, tmp_path):
    ask = ("ask", photo, "what is it?", "--model", checkpoint, "--keep", "4")
    assert "relevance='clip' needs" in refused(*ask, "--method", "script:relevance=clip")
    assert "--dual-encoder someone/clip" in refused(*ask, "--dual-encoder", "someone/clip")
    sentence = "--dual-encoder auto: no text twin is known of a clip_vision_model of width 24 with patches of 8 in 32"
    assert sentence in refused(*ask, "--dual-encoder", "auto")


def test_an_average_that_cannot_be_reached(refused, photo, checkpoint):
    ask = ("ask", photo, "what is it?", "--model", checkpoint, "--method", "fastv", "--keep", "8/layer")
    sentence = "--keep 8 tokens per layer on average: fastv cannot go below 8.5 for 16 tokens in an LLM of 2 layers."
    assert sentence in refused(*ask)
