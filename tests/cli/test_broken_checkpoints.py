"""Checkpoints that are broken, hostile or not supported: code 2 and one plain sentence."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.mark.parametrize("name", ["tokenizer.json", "processor_config.json"])
def test_a_checkpoint_that_is_not_whole(refused, photo, checkpoint, tmp_path, name):
    shutil.copytree(checkpoint, tmp_path / "part")
    (tmp_path / "part" / name).unlink()
    assert "cannot be loaded" in refused("ask", photo, "what is it?", "--model", "part")


def test_weights_that_are_no_safetensors(refused, photo, checkpoint, tmp_path):
    import torch
    from safetensors.torch import load_file

    shutil.copytree(checkpoint, tmp_path / "pickled")
    weights = tmp_path / "pickled" / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pickled" / "pytorch_model.bin")
    weights.unlink()
    said = refused("ask", photo, "what is it?", "--model", "pickled")
    assert "--model pickled: its weights are in pytorch_model.bin, a pickle, which could run any code" in said


@pytest.mark.parametrize("option", ["--dual-encoder", "--model"])
def test_a_planted_pickle_is_never_opened(refused, photo, checkpoint, clip, tmp_path, option):
    """Beside safetensors it is not looked at; alone it is refused by its name, and none of its code runs."""
    import pickle

    class Planted:
        def __reduce__(self):
            return Path.touch, (tmp_path / "it ran",)

    folder = tmp_path / "planted"
    shutil.copytree(checkpoint if option == "--model" else clip, folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    model = [] if option == "--model" else ["--model", checkpoint]
    assert f"{option} planted: its weights are in pytorch_model.bin, a pickle" in refused(
        "ask", photo, "what color is the cat ?", *model, option, "planted", "--keep", 4
    )
    assert not (tmp_path / "it ran").exists()


def test_unsupported_class(refused, photo, checkpoint, tmp_path):
    """Seen in the config, before any weights are read."""
    config = json.loads((Path(checkpoint) / "config.json").read_text())
    (tmp_path / "other").mkdir()
    for kind in ("LlavaLlamaForCausalLM", "BertForMaskedLM"):
        (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "architectures": [kind]}))
        sentence = refused("ask", photo, "what is it?", "--model", "other")
        assert f"is a {kind}, which is not supported" in sentence
        assert "the nearest supported class is" in sentence
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    assert "cannot be loaded" in refused("ask", photo, "what is it?", "--model", "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "unheard_of", "vision_config": {}}')
    assert "model of type 'unheard_of'" in refused("ask", photo, "what is it?", "--model", "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}')
    sentence = "--model other is a BertForMaskedLM, which takes no images; `vlprune models` lists those that do."
    assert sentence in refused("ask", photo, "what is it?", "--model", "other")


def test_unsupported_tower(refused, photo, checkpoint, tmp_path, monkeypatch):
    from vlprune.models import llava

    monkeypatch.setattr(llava, "MAX_LEADING", -1)  # so that no tower's tokens can be laid out
    assert "'clip_vision_model' tower" in refused("ask", photo, "what?", "--model", checkpoint, "--keep", "4")


def test_a_hub_that_has_a_pickle_only(refused, photo, checkpoint, monkeypatch):
    from transformers import LlavaForConditionalGeneration

    def fail(*args, **options):
        assert options["use_safetensors"]
        raise OSError(
            "someone/model does not appear to have a file named model.safetensors. do not set `use_safetensors`"
        )

    monkeypatch.setattr(LlavaForConditionalGeneration, "from_pretrained", fail)
    assert "the hub has its weights as a pickle only" in refused("ask", photo, "what is it?", "--model", checkpoint)


@pytest.mark.parametrize("name", ["poket", "./nowhere", "/no/such/folder", "a/b/c", "..", "what is this"])
def test_a_model_that_is_nothing(refused, photo, name):
    sentence = refused("ask", photo, "what is it?", "--model", name)
    assert "no such folder" in sentence or "no config.json" in sentence
    assert ("did you mean 'pocket'" in sentence) == (name == "poket")


def test_damaged_weights(refused, photo, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    assert "cannot be loaded" in refused("ask", photo, "what is it?", "--model", "broken")
    weights.unlink()
    assert "cannot be loaded" in refused("ask", photo, "what is it?", "--model", "broken")


def test_what_a_model_raises_is_a_sentence():
    """The words are another library's, and end as they please."""
    from vlprune import Script
    from vlprune.errors import UserError
    from vlprune.evaluation.one_question import explain_method_errors

    for said in ("tokens: 0, features: 9\n", "They do not match."):
        with (
            pytest.raises(UserError, match=r"^--method script: \S.*[^.]\.$"),
            explain_method_errors(None, Script(keep=9)),
        ):
            raise ValueError(said)
    with (
        pytest.raises(UserError, match=r"^--model absurd cannot answer \(IndexError: tuple index out of range\)\.$"),
        explain_method_errors(SimpleNamespace(name="absurd"), Script(keep=9)),
    ):
        raise IndexError("tuple index out of range")
    with pytest.raises(MemoryError), explain_method_errors(None, Script(keep=9)):
        raise MemoryError


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "holds no settings"),
        ("x", "holds no settings"),
        ({"architectures": 0.5}, "a list of class names"),
        ({"architectures": [None]}, "a list of class names"),
        ({"architectures": "x"}, "a list of class names"),
    ],
)
def test_a_config_that_is_none(refused, photo, tmp_path, content, says):
    """Found by `benchmarks/fuzz.py configs`."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(content))
    assert says in refused("ask", photo, "what is it?", "--model", "odd")


@pytest.mark.parametrize(
    ("part", "content", "says"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, "Cannot parse precompiled_charsmap"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size must be non-zero"),
    ],
)
def test_a_tokenizer_that_makes_rust_panic(photo, checkpoint, tmp_path, capfd, part, content, says):
    """Rust writes its own report, with its stack, straight to the file of the standard error: none of it is seen."""
    from vlprune.cli.app import main

    shutil.copytree(checkpoint, tmp_path / "panics")
    path = tmp_path / "panics" / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), part: content}))
    with pytest.raises(SystemExit) as end:
        main(["ask", str(photo), "what is it?", "--model", str(tmp_path / "panics")])
    assert end.value.code == 2
    (line,) = (line for line in capfd.readouterr().err.strip().splitlines() if not line.endswith(" ..."))
    assert says in line
    assert line.startswith("vlprune: --model ")


def test_what_loading_writes_to_the_standard_error_is_seen(capfd):
    import os

    from vlprune.evaluation.rust_panics import without_panic_reports

    with without_panic_reports():
        os.write(2, b"a library's warning")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a library's warning"

    def fail():
        os.write(2, b"what went before")
        raise ValueError("plain")

    with pytest.raises(ValueError, match="plain"), without_panic_reports():
        fail()
    assert capfd.readouterr().err == "what went before"


class PanicException(BaseException):  # as libraries in Rust name theirs
    pass


@pytest.mark.parametrize("place", ["load_processor", "prepare", "answer"])
def test_a_panic_is_a_sentence(refused, photo, checkpoint, monkeypatch, place):
    from vlprune.evaluation import load_model

    def panic(*args, **kwargs):
        raise PanicException("called `Option::unwrap()` on a `None` value")

    if place == "load_processor":
        monkeypatch.setattr(load_model, "_load_processor", panic)
    elif place == "prepare":
        monkeypatch.setattr("transformers.LlavaProcessor.__call__", panic)
    else:
        monkeypatch.setattr("vlprune.measure.measure_generate", panic)
    assert "Option::unwrap" in refused("ask", photo, "what is it?", "--model", str(checkpoint))


@pytest.mark.parametrize("error", ["MemoryError", "OutOfMemoryError"])
def test_too_little_memory_is_a_sentence(refused, photo, checkpoint, monkeypatch, error):
    import torch

    def fail(*args, **kwargs):
        raise MemoryError if error == "MemoryError" else torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("vlprune.measure.measure_generate", fail)
    assert "not enough memory" in refused("ask", photo, "what is it?", "--model", str(checkpoint))
