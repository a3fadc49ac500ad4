"""A method of one's own that returns nonsense is refused in one sentence that names it, and what came."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tests.support import tiny_llava as tiny
from vlprune import Budget, attach
from vlprune.errors import MethodError
from vlprune.methods import InLLMMethod, Method, ScoreMethod
from vlprune.methods.in_llm import CutResult
from vlprune.types import Selection

GREEDY = {"do_sample": False, "max_new_tokens": 3}
N, WIDTH = tiny.TOKENS, tiny.WIDTH


@dataclass(frozen=True)
class Mine(Method):
    """Returns what it is told."""

    answer: object = None

    name: ClassVar[str] = "mine"

    def select(self, view, query):
        return self.answer


def kept(*tokens, **more):
    return Selection(kept=torch.tensor([tokens]), **more)


def refusal(model, single, method, kind=ValueError):
    model = model.cpu()
    single = {name: value.cpu() for name, value in single.items()}
    with attach(model, method), pytest.raises(kind) as error:
        model.generate(**single, **GREEDY)
    return str(error.value)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "select must return a Selection; it returned None."),
        ([1, 2, 3], "select must return a Selection; it returned a list."),
        (Selection(kept=[[1, 2, 3]]), "kept must be a tensor; it is a list."),
        (Selection(torch.tensor([[1.0, 2.0, 3.0]])), "kept must be of dtype torch.int64; it is of torch.float32."),
        (Selection(torch.ones(1, N).bool()), "kept must be of dtype torch.int64; it is of torch.bool."),
    ],
)
def test_of_another_type(model, single, answer, sentence):
    assert refusal(model, single, Mine(keep=3, answer=answer), TypeError) == f"method 'mine': {sentence}"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Selection(torch.tensor([1, 2, 3])), "kept must be of shape (1, 3); it is of (3,)."),
        (kept(1, 2, 3, 4), "kept must be of shape (1, 3); it is of (1, 4)."),
        (kept(1, 2), "kept must be of shape (1, 3); it is of (1, 2)."),
        (Selection(torch.zeros(1, 3).long().to("meta")), "kept must be on cpu, as the tokens are; it is on meta."),
        (kept(1, 2, N), f"kept must be numbers from 0 to {N - 1}; kept[0] has {N}."),
        (kept(-1, 2, 3), f"kept must be numbers from 0 to {N - 1}; kept[0] has -1."),
        (kept(1, 2, 2), "kept must have each token once; kept[0] has 2 more than once."),
        (
            kept(5, 2, 7),
            "kept must be ascending unless the class says reorders = True; kept[0] has 2 after 5 "
            "(Selection.from_order sorts).",
        ),
        (
            kept(1, 2, 3, embeddings=torch.zeros(1, 3, WIDTH + 1)),
            f"embeddings must be of shape (1, 3, {WIDTH}); it is of (1, 3, {WIDTH + 1}).",
        ),
        (kept(1, 2, 3, scores=torch.zeros(1, 3)), f"scores must be of shape (1, {N}); it is of (1, 3)."),
        (kept(1, 2, 3, order=torch.tensor([1, 2, 3])), "order must be of shape (1, k); it is of (3,)."),
        (kept(*range(N + 1), sizes=(3,)), f"kept must have at most {N} columns, the image's tokens; it has {N + 1}."),
        *(
            (
                kept(1, 2, 3, sizes=sizes),
                f"sizes must be a tuple of 1 whole numbers from 1 to 3, one per image; it is {sizes!r}.",
            )
            for sizes in ((4,), (0,), (2, 2), (1.0,), torch.tensor([2]))
        ),
    ],
)
def test_of_another_shape_or_with_wrong_values(model, single, answer, sentence):
    assert refusal(model, single, Mine(keep=3, answer=answer)) == f"method 'mine': {sentence}"


def test_every_row_is_looked_at(model, ragged):
    rows = torch.tensor([[0, 1], [2, 3], [5, 4], [6, 7]])
    said = refusal(model, ragged, Mine(keep=2, answer=Selection(rows)))
    assert "kept[2] has 4 after 5" in said


def test_a_method_that_reorders_may_do_so(model, single):
    class Backwards(Mine):
        name = "backwards"
        reorders = True

    answer = kept(5, 2, 7)
    with attach(model.cpu(), Backwards(keep=3, answer=answer)) as pruner:
        model.generate(**{name: value.cpu() for name, value in single.items()}, **GREEDY)
    assert pruner.last.kept.tolist() == [2, 5, 7]
    assert "more than once" in refusal(model, single, Backwards(keep=3, answer=kept(5, 2, 5)))


@pytest.mark.parametrize("behind", [(0, 0), (2, 2), (1, 30), (-1, 99)])
def test_what_stands_behind_a_size_does_not_count(model, single, behind):
    class Few(Mine):
        name = "few"
        adapts = True

    method = Few(keep=Budget(adaptive=0.1, mean=4), answer=kept(2, 9, *behind, sizes=(2,)))
    with attach(model.cpu(), method) as pruner:
        model.generate(**{name: value.cpu() for name, value in single.items()}, **GREEDY)
    assert pruner.last.kept.tolist() == [2, 9]


class Reads(ScoreMethod):
    """Looks at the question without having asked for it."""

    name = "reads"

    def score(self, view, query):
        return (query.image * query.text).sum(dim=2)


def test_a_forgotten_needs_query(model, processor, single):
    sentence = "method 'reads' reads query.image, but its class does not say needs_query = True, so query is None."
    assert refusal(model, single, Reads(keep=3), TypeError) == sentence
    said = type("Asks", (Reads,), {"needs_query": True})
    with attach(model, said(keep=3), processor=processor) as pruner:
        model.generate(**{name: value.to(model.device) for name, value in single.items()}, **GREEDY)
    assert pruner.last.after == 3


@pytest.mark.parametrize("scores", [torch.zeros(1, 4), torch.zeros(N), [1.0] * N], ids=["few", "flat", "list"])
def test_scores_that_are_not_one_per_token(model, single, scores):
    ranks = type("Ranks", (ScoreMethod,), {"name": "ranks", "score": lambda self, view, query: scores})
    found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else "type list"
    sentence = f"method 'ranks': score must return a tensor of shape (1, {N}); it is of {found}."
    assert refusal(model, single, ranks(keep=3)) == sentence


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([[1, 2, 3]], "cut must return a CutResult; it returned a list."),
        (CutResult(torch.tensor([[1, 2]])), "kept must be of shape (1, 3); it is of (1, 2)."),
        (CutResult(torch.tensor([[1, 2, N]])), f"kept must be numbers from 0 to {N - 1}; kept[0] has {N}."),
        (CutResult(torch.tensor([[1, 3, 2]])), "kept[0] has 2 after 3 (Selection.from_order sorts)."),
    ],
)
def test_cuts_inside_the_llm(model, single, answer, sentence):
    class Inside(InLLMMethod):
        name = "inside"

        def cut_schedule(self, n, layers):
            return ((1, self.count(n)),)

        def cut(self, scores, states, keep):
            return answer

    said = refusal(model, single, Inside(keep=3), (TypeError, ValueError))
    assert said.startswith("method 'inside': ")
    assert said.endswith(sentence)


def test_what_a_method_raises_is_the_cause(model, single):
    """A method of this package is not in between: what it raises comes as it is."""

    @dataclass(frozen=True)
    class Failing(Mine):
        def select(self, view, query):
            raise KeyError("depth")

    with attach(model, Failing(keep=3)), pytest.raises(MethodError) as error:
        model.generate(**single, **GREEDY)
    assert str(error.value) == "method 'mine' raised KeyError: 'depth'."
    assert isinstance(error.value.__cause__, KeyError)
    own = type("Own", (Failing,), {"__module__": "vlprune.methods.own"})
    with attach(model, own(keep=3)), pytest.raises(KeyError):
        model.generate(**single, **GREEDY)
