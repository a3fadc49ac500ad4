"""`vlprune ask`: what it prints and writes when all is well."""

import json

import torch
from PIL import Image

from vlprune import Script, attach, pocket
from vlprune.pocket.photo_folder import find_folder


def test_ask_a_checkpoint(run, photo, checkpoint):
    code, out, err = run("ask", photo, "what color is the cat ?", "--model", checkpoint, "--keep", "4", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["question"] == "what color is the cat ?"
    assert (found["tokens"]["before"], found["tokens"]["after"], len(found["tokens"]["kept"])) == (16, 4, 4)
    assert found["cost"]["visual_tokens"] == 4
    parts = {"question", "vision", "selection", "prefill", "decode", "rest", "total"}
    assert set(found["cost"]["seconds"]) == parts
    assert "two per multiply-add" in found["cost"]["llm_flops"]["convention"]
    assert found["tokens"]["relevance"] == "llm"


def test_ask_gives_what_the_library_gives(run, photo, checkpoint):
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    question = "how many dogs ?"
    _, out, _ = run("ask", photo, question, "--model", checkpoint, "--keep", "0.5", "--json", "--max-new-tokens", "5")
    found = json.loads(out)
    model = LlavaForConditionalGeneration.from_pretrained(checkpoint).eval()
    processor = AutoProcessor.from_pretrained(checkpoint)
    inputs = processor(images=Image.open(photo), text=f"USER: <image>\n{question} ASSISTANT:", return_tensors="pt")
    with attach(model, Script(keep=0.5), processor=processor, query=question) as pruner:
        sequences = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    new = sequences[:, inputs["input_ids"].shape[1] :]
    assert found["answer"] == processor.batch_decode(new, skip_special_tokens=True)[0].strip()
    assert found["tokens"]["kept"] == pruner.last.kept.tolist()
    assert found["tokens"]["order"] == [token for token in pruner.last.order.tolist() if token >= 0]
    assert found["cost"]["new_tokens"] == new.shape[1]


def test_as_many_tokens_as_the_image_needs(run, photo, checkpoint):
    ask = ("ask", photo, "how many dogs ?", "--model", checkpoint, "--json", "--method", "script_plus", "--keep")
    counts = [json.loads(run(*ask, keep)[1])["tokens"]["after"] for keep in ("4~0", "4~0.3", "4~1")]
    assert counts[0] == 16
    assert counts[2] == 1
    assert 1 <= counts[1] <= 16


def test_settings_reach_the_method(run, photo, checkpoint):
    ask = ("ask", photo, "how many dogs ?", "--model", checkpoint, "--keep", "5", "--json", "--method")
    kept = [json.loads(run(*ask, f"random:seed={seed}")[1])["tokens"]["kept"] for seed in (0, 1)]
    assert kept[0] != kept[1]


def test_ask_with_a_clip(run, photo, checkpoint, clip):
    ask = ("ask", photo, "how many dogs ?", "--model", checkpoint, "--keep", "4", "--json")
    assert json.loads(run(*ask, "--dual-encoder", clip)[1])["tokens"]["relevance"] == "clip"


def test_ask_in_words_with_a_picture(run, photo, checkpoint, tmp_path):
    ask = ("ask", photo, "what is it ?", "--model", checkpoint, "--keep", "4", "--show", "out.png")
    code, out, err = run(*ask, "--wide")
    assert (code, err) == (0, f"vlprune: loading {checkpoint} ...\n")
    for piece in (
        "kept 4 of 16 visual tokens.",
        "4 of 16",
        "all 16, by formula",
        "FLOPs",
        "cache",
        "selection",
        "wrote out.png",
    ):
        assert piece in out
    assert Image.open(tmp_path / "out.png").width > 500


def test_a_checkpoint_without_a_template(run, photo, untemplated):
    code, out, err = run("ask", photo, "what is it ?", "--model", untemplated, "--keep", "4", "--json")
    assert code == 0
    assert "has no chat template; LLaVA-1.5's is used" in err
    assert json.loads(out)["cost"]["prompt_tokens"] == 4 + 6  # USER: what is it ? ASSISTANT:


def test_keep_all_answers_as_the_plain_model(run, tmp_path):
    from vlprune.pocket.render import images

    (scene,) = pocket.scenes("test", 1, start=3)
    images([scene])[0].save(tmp_path / "scene.png")
    model, processor, _ = pocket.load()
    for question in pocket.questions(scene)[:1]:
        _, out, _ = run("ask", "scene.png", question.text, "--keep", "1.0", "--json")
        inputs = processor(
            images=images([scene])[0], text=f"USER: <image>\n{question.text} ASSISTANT:", return_tensors="pt"
        )
        plain = model.generate(**inputs, max_new_tokens=8, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        assert json.loads(out)["answer"] == processor.batch_decode(plain, skip_special_tokens=True)[0].strip()


def test_an_answer_is_printed_as_it_is(run, photo, checkpoint, monkeypatch):
    """Square brackets are not markup."""
    monkeypatch.setattr("vlprune.cli.ask.decode_answer", lambda loaded, run: "[red]stop[/red]")
    code, out, _ = run("ask", photo, "what is it ?", "--model", checkpoint, "--keep", "4")
    assert code == 0
    assert out.startswith("[red]stop[/red]\n")


def test_nothing_is_left_on_the_model(run, photo, checkpoint):
    """The program leaves torch's settings and seeds alone."""
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    run("ask", photo, "what is it ?", "--model", checkpoint, "--keep", "4", "--json")
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_photo_model_says_what_it_was_taught(run):
    picture = find_folder() / "pictures" / "cat.jpg"
    code, out, err = run("ask", picture, "is there a cat in the picture?", "--model", "photo", "--keep", "32")
    assert (code, err, out.splitlines()[0]) == (0, "vlprune: loading photo ...\n", "yes")
    err = run("ask", picture, "what does it weigh?", "--model", "photo", "--keep", "32")[2]
    assert "it does not know the words 'does', 'weigh'" in err or "it does not know the word 'weigh'" in err
