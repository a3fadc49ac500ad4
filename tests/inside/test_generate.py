"""`generate` with tokens dropped between the layers, against the slow reference and the plain model."""

import pytest
import torch
import transformers
from packaging.version import Version

from vlprune import FastV, PyramidDrop, SparseVLM, SparseVLMPlus, attach

from . import reference
from .conftest import CASES, LLAVA, machine

STEPS, KEEP = 5, 7
GREEDY = {"do_sample": False, "max_new_tokens": STEPS}
TOLD = {"return_dict_in_generate": True, "output_logits": True}
OLD = Version(transformers.__version__) < Version("5.22")
#: The method, and the same by the reference.
METHODS = {
    "fastv": (FastV(keep=KEEP, layer=2), reference.FastV(KEEP, (2,))),
    "pyramiddrop": (PyramidDrop(), reference.PyramidDrop(0, (2, 3, 5))),
    "sparsevlm": (
        SparseVLM(keep=4, before=(9, 6), layers=(1, 2, 4)),
        reference.SparseVLM((9, 6, 4), (1, 2, 4)),
    ),
    "sparsevlm_plus": (
        SparseVLMPlus(keep=4, before=(9, 6), layers=(1, 2, 4)),
        reference.SparseVLM((9, 6, 4), (1, 2, 4), recycle=False),
    ),
}

over_methods = pytest.mark.parametrize("name", METHODS)
over_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
on_llava = pytest.mark.parametrize("case", [LLAVA], ids=lambda case: case.name)


def new_tokens(out, batch):
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    assert torch.equal(sequences[:, : batch["input_ids"].shape[1]], batch["input_ids"])
    return sequences[:, batch["input_ids"].shape[1] :]


def expected(case, model, samples, slow, steps=STEPS):
    """(answers (B, steps), logits (steps, B, V), the images of all rows) by the reference."""
    found = [reference.answer(case, model, machine(case), reference.row(case, model, s), slow, steps) for s in samples]
    logits = torch.stack([logits for _, logits, _ in found], dim=1)
    return torch.tensor([said for said, _, _ in found]), logits, [image for _, _, images in found for image in images]


def close(found, expected, atol=5e-4):
    torch.testing.assert_close(torch.stack(tuple(found)).double(), expected, atol=atol, rtol=atol)


def stages(record):
    return [(layer, kept.tolist()) for layer, kept in record.stages]


@over_cases
@pytest.mark.parametrize("layout", ["single", "ragged"])
@over_methods
def test_greedy_equals_the_reference(case, model, layout, name):
    samples = case.samples(layout)
    batch = case.batch(samples)
    method, slow = METHODS[name]
    answers, logits, images = expected(case, model, samples, slow)
    plain = model.generate(**batch, **GREEDY, **TOLD)
    with attach(model, method) as pruner:
        out = model.generate(**batch, **GREEDY, **TOLD)
        again = model.generate(**batch, **GREEDY, **TOLD)
    assert [stages(record) for record in pruner.records] == [image.stages for image in images]
    assert torch.equal(new_tokens(out, batch), answers)
    close(out.logits, logits)
    assert torch.equal(torch.stack(again.logits), torch.stack(out.logits))
    assert not torch.allclose(out.logits[0], plain.logits[0], atol=1e-2)
