"""Yes/no questions: the AUC against all pairs, and the margins against the tokens that answers begin with."""

import random
from types import SimpleNamespace

import pytest
import torch

from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.yes_no import auc, says_yes_or_no, yes_margins, yes_no_scores, yes_no_table, yes_no_tokens


def question(answer, kind="exist"):
    return ImageQuestion(0, "a", kind, "is it?", (answer,))


@pytest.mark.parametrize("seed", range(4))
def test_the_auc_is_the_share_of_pairs_in_the_right_order(seed):
    rng = random.Random(seed)
    margins = [rng.choice([-1.0, 0.0, 0.5, 2.0]) for _ in range(30)]
    truth = [rng.random() < 0.4 for _ in margins]
    pairs = [(a > b) + 0.5 * (a == b) for a, x in zip(margins, truth) if x for b, y in zip(margins, truth) if not y]
    assert auc(margins, truth) == pytest.approx(sum(pairs) / len(pairs))
    assert auc([m - 7 for m in margins], truth) == auc(margins, truth)  # a shift to one side does not matter
    assert auc(margins, [True] * 30) is None


def test_margins_are_of_yes_over_no_and_of_yes_no_questions_only(loaded):
    yes, no = yes_no_tokens(loaded.processor)
    assert loaded.processor.tokenizer.decode(yes) == "yes"
    assert loaded.processor.tokenizer.decode(no) == "no"
    logits = torch.zeros(2, len(loaded.processor.tokenizer))
    logits[0, yes], logits[0, no] = 3.0, 1.0
    asked = [question("Yes"), question("red")]
    assert [says_yes_or_no(one) for one in asked] == [True, False]
    assert yes_margins(loaded.processor, asked, logits) == [2.0, None]
    assert yes_margins(loaded.processor, asked, None) == [None, None]


def test_words_that_begin_alike_or_are_unknown_say_nothing():
    def tokenizer(text, add_special_tokens):
        return SimpleNamespace(input_ids={"yes": [5], "no": [5], "Yes": [0], "No": [7]}[text])

    tokenizer.unk_token_id = 0
    processor = SimpleNamespace(tokenizer=tokenizer)
    assert yes_no_tokens(processor) == ([], [7])
    assert yes_margins(processor, [question("yes")], torch.zeros(1, 9)) == [None]


def test_scores_and_table():
    asked = [question("yes"), question("no"), question("yes"), question("red", "colour")]
    lines = [
        {"answer": "no", "right": False, "yes": -1.0},
        {"answer": "no", "right": True, "yes": -3.0},
        {"answer": "yes", "right": True, "yes": 1.0},
        {"answer": "red", "right": True},
    ]
    scores = yes_no_scores(asked, lines)
    assert scores == {"exist": {"asked": 3, "right": 2, "says_yes": 1, "auc": 1.0}}
    (row,) = yes_no_table([("script", "64", scores)]).rows
    assert row[:3] == ["script", "64", "exist"]
    assert row[3].startswith("66.7 [")
    assert row[4:] == ["100.0", "33.3"]
    del lines[0]["yes"]  # of a run made before margins were kept
    assert yes_no_scores(asked, lines)["exist"]["auc"] is None
