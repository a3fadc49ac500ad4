"""Our scores of single answers beside lmms-eval's code for the same benchmarks."""

import itertools
import random

from vlprune.evaluation import benchmark_scores as ours

WORDS = [
    "the",
    "two",
    "none",
    "dont",
    "couldnt've",
    "red",
    "it's",
    "1,000",
    "3.5",
    "a.m.",
    "yes",
    "No",
    "50%",
    "-",
    "x-ray",
]
SIGNS = ["", ".", "!", "?", ";", "/", "'s", " ,", "(", "_"]


def texts():
    """Answers with everything that is normalised away."""
    dice = random.Random(0)
    for _ in range(2000):
        yield " ".join(dice.choice(WORDS) + dice.choice(SIGNS) for _ in range(dice.randint(1, 4)))


def test_vqa_words():
    from lmms_eval.tasks._task_utils.vqa_eval_metric import EvalAIAnswerProcessor

    theirs = EvalAIAnswerProcessor()
    odd = {"somebody'd", "let's", "lets", "shes", "she's"}  # of which theirs knows only one spelling
    for text in [*texts(), *(set(theirs.CONTRACTIONS) - odd)]:
        assert ours.normalize_vqa(text) == theirs(text), text


def test_vqa_accuracy():
    from lmms_eval.tasks.textvqa.utils import textvqa_process_results

    for count in range(11):
        answers = ["red"] * count + ["blue"] * (10 - count)
        theirs = textvqa_process_results({"answers": list(answers), "question_id": 0}, ["red"])["exact_match"]
        assert abs(ours.vqa_score("red", answers) - theirs) < 1e-9


def test_relaxed_accuracy():
    from lmms_eval.tasks.chartqa.utils import relaxed_correctness

    values = ["10", "10.4", "10.6", "0", "5%", "0.05", "Asia", "asia", "-3", "1,000", "", "nan"]
    for said, true in itertools.product(values, values):
        assert ours.relaxed_score(said, [true]) == float(relaxed_correctness(said, true)), (said, true)


def test_yes_and_no():
    from lmms_eval.tasks.mme.utils import parse_pred_ans

    for text in [*texts(), "y", "n", "Yes, it is", "no.", "not at all", "o", ""]:
        assert ours.read_yes_no(text) == parse_pred_ans(text), text


def test_letters():
    from lmms_eval.tasks.scienceqa.utils import sqa_process_results

    for text in ["B", "b", "B. a dog", "b. a dog", "A. a cat", "a dog", "B.", ""]:
        theirs = sqa_process_results({"choices": ["x", "y"], "answer": 1}, [text])["exact_match"]
        assert ours.letter_score(text, ["B"]) == theirs, text
