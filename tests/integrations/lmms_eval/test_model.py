"""`--model vlprune` inside the real lmms-eval, beside plain transformers and `attach`, answer by answer."""

from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from tests.integrations.lmms_eval.local_tasks import POPE, read_rows, write_task
from vlprune import Script, attach
from vlprune.evaluation.load_model import load_model

TASKS = ["local_pope", "local_gqa", "local_textvqa", "local_mme"]
NEW = {"max_new_tokens": 4, "do_sample": False}


def run(folder, tasks, force_simple=False, limit=None, **arguments):
    """Results and answers by task of a run of lmms-eval, with the model that its entry point names."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    given = {"pretrained": "pocket", "device": "cpu", **arguments}
    found = simple_evaluate(
        model="vlprune",
        model_args=",".join(f"{name}={value}" for name, value in given.items()),
        batch_size=1,
        tasks=list(tasks),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        limit=limit,
        force_simple=force_simple,
        cli_args=SimpleNamespace(process_with_media=False, output_path=str(folder), reasoning_tags=None),
    )
    answers = {task: [one["filtered_resps"] for one in samples] for task, samples in found["samples"].items()}
    return found["results"], answers


def prompts(pocket, folder, task):
    """The inputs of each row of a task, one by one, and its question."""
    from lmms_eval.tasks.mme.utils import mme_doc_to_text

    for row in read_rows(folder, task):
        text = row["question"].capitalize() if task == "local_textvqa" else row["question"]
        if task == "local_mme":
            told = {"pre_prompt": "", "post_prompt": "\nAnswer the question using a single word or phrase."}
            text = mme_doc_to_text(row, told)
        turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}
        prompt = pocket.processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
        yield pocket.processor(images=row["image"].convert("RGB"), text=prompt, return_tensors="pt"), row["question"]


def say(pocket, inputs):
    """What the model says, by transformers alone."""
    out = pocket.model.generate(**inputs, **NEW)
    return pocket.processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


@pytest.fixture(scope="module")
def pruned(tasks):
    return run(tasks, TASKS, method="script", keep=32, batch_size=1)


def test_unpruned_answers_are_those_of_transformers(tasks, pocket):
    results, answers = run(tasks, TASKS, method="none", batch_size=8)
    for task in TASKS:
        assert answers[task] == [[say(pocket, inputs)] for inputs, _ in prompts(pocket, tasks, task)]
    assert results["local_pope"]["pope_accuracy,none"] > 0.8  # it can read these questions
    assert results["local_gqa"]["exact_match,none"] > 0.5


def test_pruned_answers_are_those_of_attach(tasks, pocket, pruned):
    _, answers = pruned
    for task in TASKS:
        expected = []
        for inputs, question in prompts(pocket, tasks, task):
            options = {"processor": pocket.processor, "query": question, "dual_encoder": pocket.clip}
            with attach(pocket.model, Script(keep=32), **options):
                expected.append([say(pocket, inputs)])
        assert answers[task] == expected


def test_the_photo_model_answers_as_by_transformers_and_attach(tasks):
    photo, task = load_model("photo", None, "cpu"), "local_pope"
    plain, pruned = [], []
    for inputs, question in islice(prompts(photo, tasks, task), 4):
        plain.append([say(photo, inputs)])
        with attach(photo.model, Script(keep=32), processor=photo.processor, query=question, dual_encoder=photo.clip):
            pruned.append([say(photo, inputs)])
    assert run(tasks, [task], pretrained="photo", method="none", limit=4)[1][task] == plain
    assert run(tasks, [task], pretrained="photo", method="script", keep=32, limit=4)[1][task] == pruned


def test_a_batch_of_eight_answers_as_a_batch_of_one(tasks, pruned, monkeypatch):
    """CLIP's text tower rounds a question otherwise among others, which may decide between tokens as good as equal: for
    selection to have equal inputs, questions are embedded one by one here."""
    from vlprune.pruning.dual_encoder import DualEncoder

    few = {"method": "divprune", "keep": 64}
    assert run(tasks, TASKS, **few, batch_size=8)[1] == run(tasks, TASKS, **few, batch_size=1)[1]
    embed = DualEncoder.text
    monkeypatch.setattr(DualEncoder, "text", lambda self, texts: torch.cat([embed(self, [text]) for text in texts]))
    assert run(tasks, TASKS, method="script", keep=32, batch_size=8)[1] == pruned[1]


def test_likelihoods(tasks, pocket):
    """Of "yes" and "no" behind the prompt: unpruned as one pass of transformers, pruned as the first new token."""
    results, answers = run(tasks, ["local_choices"], force_simple=True, method="none")
    _, short = run(tasks, ["local_choices"], force_simple=True, method="script", keep=32)
    ids = [pocket.processor.tokenizer(word, add_special_tokens=False)["input_ids"] for word in ("yes", "no")]
    for row, (inputs, question) in enumerate(prompts(pocket, tasks, "local_choices")):
        with torch.no_grad():
            expected = pocket.model(**inputs).logits[0, -1].log_softmax(-1)[torch.tensor(ids).flatten()]
            options = {"processor": pocket.processor, "query": question, "dual_encoder": pocket.clip}
            with attach(pocket.model, Script(keep=32), **options):
                pruned = pocket.model(**inputs).logits[0, -1].log_softmax(-1)[torch.tensor(ids).flatten()]
        torch.testing.assert_close(chances(answers, row), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(chances(short, row), pruned, atol=1e-4, rtol=1e-4)
    assert results["local_choices"]["acc,none"] > 0.8


def chances(found, row):
    """The log-probabilities of both choices of a row; lmms-eval has them with their signs turned."""
    return torch.tensor([-loss for loss, _ in found["local_choices"][row]])


def test_a_broken_sample_is_said_and_skipped(tasks, tmp_path, capsys):
    rows = [dict(row) for row in read_rows(tasks, "local_pope").select(range(6))]
    for row in rows:
        row["image"] = {"bytes": png(row["image"]), "path": None}
    rows[2]["image"] = {"bytes": b"no image", "path": None}
    write_task(tmp_path, "local_broken", "pope", rows, POPE)
    _, answers = run(tmp_path, ["local_broken"], method="none", batch_size=3)
    assert "1 of 6 samples could not be asked" in capsys.readouterr().out
    _, whole = run(tasks, ["local_pope"], method="none")
    assert answers["local_broken"] == [*whole["local_pope"][:2], [""], *whole["local_pope"][3:6]]


def png(image):
    import io

    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
