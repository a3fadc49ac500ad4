"""Direct calls of the model: logits, loss and gradients at the prompt's own length."""

import pytest
import torch

from tests.pruning.layers.test_generate import KEEP, METHODS, on_llava, over_cases, over_methods
from tests.support import layers_reference as reference
from tests.support.deep_models import machine
from tests.support.families.case import IMAGE
from vlprune import FastV, PyramidDrop, attach


def right_padded(batch):
    """The same rows, padded as for training."""
    mask = batch["attention_mask"].bool()
    rows = {name: value for name, value in batch.items() if value.shape == mask.shape}
    moved = {}
    for name, value in rows.items():
        moved[name] = torch.nn.utils.rnn.pad_sequence([row[real] for row, real in zip(value, mask)], batch_first=True)
    return {**batch, **moved}


@over_cases
@pytest.mark.parametrize("side", ["left", "right"])
@over_methods
def test_logits_and_loss_equal_the_reference(case, model, side, name):
    samples = case.samples("ragged")
    batch = case.batch(samples)
    batch = right_padded(batch) if side == "right" else batch
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    labels = ids.masked_fill(~mask | (mask.cumsum(1) == 1) | (ids == IMAGE), -100)  # nothing predicts a row's first
    method, slow = METHODS[name]
    before = labels.clone()
    with attach(model, method), torch.no_grad():
        out = model(**batch, labels=labels)
        plain = model(**batch).logits
    assert torch.equal(labels, before)
    assert torch.equal(plain, out.logits)
    assert out.logits.shape[:2] == ids.shape
    losses = []
    for row, sample in enumerate(samples):
        logits, columns, _, _ = machine(case).run(reference.row(case, model, sample), slow, case.positions == ("grid",))
        real = out.logits[row][mask[row]]
        torch.testing.assert_close(real[columns].double(), logits, atol=5e-4, rtol=5e-4)
        assert set((real != 0).any(-1).nonzero()[:, 0].tolist()) == set(columns)
        target = labels[row][mask[row]]
        for column, values in zip(columns, logits):  # what a dropped token would have predicted is left out
            if column + 1 in columns and target[column + 1] != -100:
                losses.append(torch.nn.functional.cross_entropy(values, target[column + 1]))
    torch.testing.assert_close(out.loss.double(), torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)


@on_llava
@over_methods
def test_gradients_reach_the_tower(case, model, name):
    batch = case.batch(case.samples("ragged"))
    labels = batch["input_ids"].masked_fill(batch["input_ids"] == IMAGE, -100)
    with attach(model, METHODS[name][0]):
        model.train()
        model(**batch, labels=labels).loss.backward()
        model.eval()
    weight = model.model.multi_modal_projector.linear_1.weight
    assert float(weight.grad.abs().sum()) > 0
    model.zero_grad()


@on_llava
def test_gradient_checkpointing_is_refused(case, model):
    batch = case.batch(case.samples("single"))
    model.gradient_checkpointing_enable()
    model.train()
    try:
        with attach(model, FastV(keep=KEEP)), pytest.raises(ValueError, match="gradient checkpointing"):
            model(**batch, use_cache=False)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()


@on_llava
def test_without_a_mask(case, model):
    batch = case.batch(case.samples("single"))
    with attach(model, PyramidDrop()), torch.no_grad():
        told = model(**batch).logits
        batch.pop("attention_mask")
        assert torch.equal(model(**batch).logits, told)
        assert torch.equal(model(**batch, use_cache=False).logits, told)


@on_llava
@over_methods
def test_keys_that_the_cache_holds_are_not_computed_again(case, model, name):
    method = METHODS[name][0]
    batch = case.batch(case.samples("single"))
    again = 3 if name == "pyramiddrop" else 0  # it goes by the layers behind its three cuts, which have not run yet
    calls = []
    hooks = [
        layer.self_attn.k_proj.register_forward_hook(lambda *_: calls.append(1)) for layer in model.get_decoder().layers
    ]
    with attach(model, method), torch.no_grad():
        cached = model(**batch, use_cache=True).logits
        assert len(calls) == len(hooks) + again
        assert torch.equal(model(**batch, use_cache=False).logits, cached)
    for hook in hooks:
        hook.remove()
