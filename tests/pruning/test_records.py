"""What the records say."""

import copy

import pytest
import torch

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import DppOnly, Random, Record, Script, attach
from vlprune.devices import Stopwatch
from vlprune.selection import graph_scores, relevance_scores

KEEP = 9
GREEDY = {"do_sample": False, "max_new_tokens": 2}


def test_one_record_per_image_in_prompt_order(model, processor, ragged):
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
    assert [(r.row, r.image) for r in pruner.records] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert pruner.last is pruner.records[-1]
    for record in pruner.records:
        assert isinstance(record, Record)
        assert (record.before, record.after, record.grid) == (tiny.TOKENS, KEEP, (6, 6))
        assert record.kept.shape == (KEEP,)
        assert record.kept.dtype == torch.int64
        assert record.kept.tolist() == sorted(set(record.kept.tolist()))
        assert (record.source, record.sign) == ("llm", 1)
        assert record.seconds > 0
    assert [r.query for r in pruner.records] == [
        "what color is the big red cat ?",
        *["is the left image like the other one ?"] * 2,
        "how many dogs ?",
    ]


@pytest.mark.parametrize("keep", [KEEP, 1.0])
def test_scores_are_the_methods(model, processor, ragged, keep):
    with attach(model, Script(keep=keep, fusion="supplement"), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
    records = iter(pruner.records)
    for ids, pixels in reference.rows(ragged):
        words = model.get_input_embeddings()(torch.tensor([reference.question(ids)], device=model.device))
        for _, tokens in reference.encode(model, pixels):
            record = next(records)
            assert sorted(record.scores) == ["redundancy", "relevance"]
            expected = relevance_scores(tokens[None], words)[0]
            torch.testing.assert_close(record.relevance, expected, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(record.redundancy, graph_scores(tokens[None])[0], atol=1e-3, rtol=1e-3)
            assert record.order is not None
            assert len(record.order) >= len(record.choices) >= record.after
            assert set(record.kept.tolist()) <= set(record.choices)
            assert (record.order < 0).sum() == len(record.order) - len(record.choices)


def test_what_a_method_lacks_is_none(model, single):
    for method in (Random(keep=KEEP), DppOnly(keep=KEEP)):
        with attach(model, method) as pruner:
            model.generate(**single, **GREEDY)
        record = pruner.last
        assert record.redundancy is None
        assert record.relevance is None
        assert record.scores == {}
        assert (record.query, record.source, record.sign) == (None, None, None)
        assert sorted(record.order.tolist()) == record.kept.tolist()


def test_records_are_of_the_most_recent_call(model, processor, ragged, single):
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        assert pruner.records == []
        with pytest.raises(LookupError, match=r"^no call yet, so there is no record: call model\.generate"):
            pruner.last  # noqa: B018
        model.generate(**ragged, **GREEDY)
        assert len(pruner.records) == 4
        model(**single)
        assert len(pruner.records) == 1
        text = {name: single[name][:, -4:] for name in ("input_ids", "attention_mask")}
        model(**text)
        assert pruner.records == []
        with pytest.raises(LookupError, match=r"^the most recent call had no images"):
            pruner.last  # noqa: B018


@pytest.mark.parametrize(("call", "options"), [("generate", GREEDY), ("__call__", {})])
def test_a_first_call_without_images(model, single, call, options):
    text = {name: single[name][:, -4:] for name in ("input_ids", "attention_mask")}
    with attach(model, Random(keep=KEEP)) as pruner:
        getattr(model, call)(**text, **options)
        with pytest.raises(LookupError, match=r"^the most recent call had no images"):
            pruner.last  # noqa: B018


def test_ratio_budgets(model, single):
    with attach(model, Random(keep=0.25)) as pruner:
        model.generate(**single, **GREEDY)
    assert pruner.last.after == tiny.TOKENS // 4


def test_seconds_are_shared_by_the_images_of_a_call(model, ragged):
    with attach(model, Random(keep=KEEP)) as pruner:
        model.generate(**ragged, **GREEDY)
    assert len({record.seconds for record in pruner.records}) == 1


def test_a_stopwatch_is_not_copied():
    """A kept cache holds its records; copying it must not try to copy a GPU's events."""

    class Event:
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle 'Event' object")

    watch = Stopwatch(torch.device("cpu"))
    watch._marks = [Event(), Event()]
    assert (
        copy.deepcopy(Record(kept=torch.tensor([0]), before=1, after=1, grid=(1, 1), stopwatch=watch)).stopwatch
        is watch
    )
