"""Settings, presets and accounting; the tensor functions against loops."""

import pytest
import torch

from tests.pruning.layers.test_generate import on_llava
from tests.support import layers_reference as reference
from vlprune import FastV, PyramidDrop, SparseVLM, SparseVLMPlus, attach, get_method
from vlprune.methods.sparsevlm import rater_weights


@pytest.mark.parametrize(
    ("name", "preset", "counts"),
    [
        ("fastv", "paper", (288,)),
        ("fastv", "192", (166,)),
        ("fastv", "128", (98,)),
        ("fastv", "64", (30,)),
        ("sparsevlm", "192", (300, 200, 110)),
        ("sparsevlm", "128", (303, 110, 36)),
        ("sparsevlm", "96", (238, 48, 26)),
        ("sparsevlm", "64", (66, 30, 17)),
        ("sparsevlm_plus", "192", (300, 200, 118)),
        ("sparsevlm_plus", "128", (238, 108, 60)),
        ("sparsevlm_plus", "96", (246, 54, 28)),
        ("sparsevlm_plus", "64", (66, 34, 20)),
    ],
)
def test_presets(name, preset, counts):
    method = get_method(name, preset=preset)
    assert method.cut_schedule(576, 32) == tuple(zip((2, 6, 15), counts))
    assert [step.keep for step in method.layer_budgets(576, 32)] == list(counts)
    entering, average = method.accounting(576, 32)
    assert entering == 576
    if preset.isdigit():  # tables quote the average over the layers
        assert average == pytest.approx(int(preset), rel=0.05)


def test_accounting_counts_what_is_merged():
    assert SparseVLM(**SparseVLM.presets["192"]).layer_budgets(576, 32)[0] == (2, 300, 9)  # 276 go, 82 are recycled
    assert SparseVLM(keep=570 / 576, before=(574 / 576, 572 / 576)).layer_budgets(576, 32)[0] == (2, 574, 0)
    assert PyramidDrop().cut_schedule(576, 32) == ((8, 288), (16, 144), (24, 72))
    assert PyramidDrop().accounting(576, 32) == (576, 270.0)
    assert FastV(keep=1.0).accounting(576, 32) == (576, 576.0)


@pytest.mark.parametrize("layers", [2, 3, 4, 6, 24, 28, 40, 80])
def test_stages_scale_with_depth(layers):
    for method in (FastV(keep=0.5), PyramidDrop(), SparseVLM(keep=0.2)):
        steps = method.layer_budgets(576, layers)
        at = [step.layer for step in steps]
        assert at == sorted(set(at))
        assert all(1 <= layer < layers for layer in at)
        assert steps[-1].keep == method.count(576)
    if layers == 40:
        assert [step.layer for step in SparseVLM().layer_budgets(576, 40)] == [3, 8, 19]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastV(layer=0), "layer=.*from 1"),
        (lambda: FastV(layer=2.5), "layer=.*from 1"),
        (lambda: FastV(keep=0), "keep=0"),
        (lambda: PyramidDrop(layers=(3, 2)), "layers=.*ascending"),
        (lambda: PyramidDrop(layers=()), "layers=.*ascending"),
        (lambda: SparseVLM(layers=(1, 2)), "layers=.*3 layers"),
        (lambda: SparseVLM(before=(0.5,)), "before="),
        (lambda: SparseVLM(before=(0.5, 1.5)), "ratio"),
        (lambda: SparseVLM(recycle=2), "recycle=2"),
        (lambda: FastV(layer=40).layer_budgets(576, 32), "cuts before layer 40"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@on_llava
def test_a_layer_that_the_model_has_not(case, model):
    with pytest.raises(ValueError, match="cuts before layer 6: the LLM has 6"):
        attach(model, FastV(layer=6))


def test_methods_are_registered():
    assert get_method("fastv", keep=9, layer=3) == FastV(keep=9, layer=3)
    assert get_method("sparsevlm_plus", keep=9) == SparseVLMPlus(keep=9)


# --- the tensor functions ---


def test_raters_equal_the_loop():
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(2, 14, 6, generator=generator)
    visual, text = states[:, :9], states[:, 9:]
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    weights = rater_weights(visual, text, real)
    for i, size in enumerate((5, 3)):
        image = reference.Image(list(range(9)), [], 13, list(range(9, 9 + size)))
        raters = reference.SparseVLM(0, ()).raters(states[i].double(), image)
        expected = torch.zeros(5)
        expected[[rater - 9 for rater in raters]] = 1 / len(raters)
        torch.testing.assert_close(weights[i], expected)
    assert torch.equal(rater_weights(visual * 0, text, real)[0], torch.full((5,), 0.2))
