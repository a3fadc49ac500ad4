"""How far pruned outputs are from whole ones, against a computation of its own."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune import Random, Script, attach, get_method
from vlprune.measure import FirstLogits, next_token_kl
from vlprune.measure.efficiency import measure_efficiency

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3)


def slow_kl(full, pruned):
    """By the definition, in float64, one token after another."""

    def shares(logits):
        sizes = [math.exp(x) for x in logits]
        return [size / sum(sizes) for size in sizes]

    return sum(p * math.log(p / q) for p, q in zip(shares(full), shares(pruned)))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(full=LOGITS, pruned=LOGITS)
def test_it_is_the_definition(full, pruned):
    found = next_token_kl(torch.tensor([full, full]), torch.tensor([pruned, full]))
    assert found[0] == pytest.approx(slow_kl(full, pruned), rel=1e-4, abs=1e-5)
    assert found[1] == 0.0


def test_dtypes_and_tokens_that_are_never_said():
    full = torch.tensor([[1.0, -float("inf"), 0.0]])
    assert next_token_kl(full, full).tolist() == [0.0]
    half = torch.randn(2, 50).bfloat16()
    assert next_token_kl(half, half.flip(0)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"full \(2, 50\), pruned \(2, 49\): logits of one shape"):
        next_token_kl(half, half[:, 1:])


def shortened_logits(model, inputs, kept):
    """The last logits of a prompt from which the other visual tokens are cut, with no pruner anywhere."""
    with torch.no_grad():
        embeds = model.get_input_embeddings()(inputs["input_ids"]).clone()
        features = model.model.get_image_features(inputs["pixel_values"]).pooler_output
        embeds[inputs["input_ids"] == 95] = torch.cat(list(features)).to(embeds)
        keep = [0, *(1 + i for i in kept), 17, 18, 19]
        positions = torch.arange(len(keep), device=embeds.device)[None]
        return model(inputs_embeds=embeds[:, keep], position_ids=positions).logits[:, -1]


def test_the_first_logits_are_those_of_the_shortened_prompt(model, inputs):
    with FirstLogits(model) as whole:
        model.generate(**inputs, max_new_tokens=3, do_sample=False)
    with attach(model, Random(keep=5)) as pruner, FirstLogits(model) as pruned:
        model.generate(**inputs, max_new_tokens=3, do_sample=False)
    torch.testing.assert_close(whole.logits, shortened_logits(model, inputs, range(16)))
    torch.testing.assert_close(pruned.logits, shortened_logits(model, inputs, pruner.last.kept.tolist()))
    assert not model._forward_hooks


def test_nothing_recorded_is_told(model):
    with FirstLogits(model) as nothing, pytest.raises(RuntimeError, match="call the model's generate"):
        _ = nothing.logits


def test_bench_s_rows(model, inputs):
    """All tokens kept: exactly nothing lost; few kept: what the definition says of the shortened prompt."""
    methods = [Random(keep=16), Random(keep=3), get_method("fastv", keep=1.0)]
    report = measure_efficiency(model, inputs, methods, new_tokens=4, repeats=1, warmup=0)
    whole, everything, few, inside = report.rows
    for row in (whole, everything, inside):
        assert (row.kl, row.agreement) == (0.0, 1.0)
    kept = _kept(model, inputs, methods[1])
    full, pruned = (shortened_logits(model, inputs, some)[0].tolist() for some in (range(16), kept))
    assert few.kl == pytest.approx(slow_kl(full, pruned), rel=1e-3, abs=1e-7)
    assert few.kl > 0
    titles, first, second, *_ = report.cells()
    cells = [dict(zip(titles, row)) for row in (first, second)]
    assert [cell["KL of 1st token"] for cell in cells] == ["", "0"]
    assert [cell["same answer"] for cell in cells] == ["", "100 %"]
    assert report.to_json()["rows"][2]["kl"] == few.kl


def test_agreement_is_of_whole_answers(model, inputs):
    """A row per prompt: of two, the share whose greedy answers are the same, token by token."""
    pair = {name: torch.cat([value, value]) for name, value in inputs.items()}
    pair["pixel_values"][1] = 0.0
    answers = []
    for method in (None, Script(keep=2, relevance="llm")):
        with attach(model, method) if method else FirstLogits(model):
            answers.append(model.generate(**pair, max_new_tokens=6, min_new_tokens=6, do_sample=False)[:, 20:])
    wanted = float((answers[0] == answers[1]).all(1).float().mean())
    (_, row) = measure_efficiency(model, pair, [Script(keep=2)], new_tokens=6, repeats=1, warmup=0).rows
    assert row.agreement == wanted


def _kept(model, inputs, method):
    with attach(model, method) as pruner:
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
    return pruner.last.kept.tolist()
