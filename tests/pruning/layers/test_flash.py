"""Methods inside the LLM under flash attention, and on a GPU, against the slow reference."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.pruning.layers.test_generate import GREEDY, METHODS, TOLD, close, known, new_tokens
from tests.support.deep_models import CASES, LLAVA
from tests.support.flash_attention import flash_attn_func, flash_attn_varlen_func, under_flash
from vlprune import Script, attach

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
over_devices = pytest.mark.parametrize("device", ["cpu", CUDA])
over_methods = pytest.mark.parametrize("name", METHODS)
over_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
#: How a prompt is laid out and answered.
RUNS = (
    ("single", {}),
    ("ragged", {}),
    ("ragged", {"cache_implementation": "static"}),
    ("ragged", {"use_cache": False}),
)


@pytest.fixture(autouse=True)
def _float32():
    """Convolutions, too."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = before


def alike(out, answers, logits, batch):
    """For each row, whether its logits are the expected ones up to float16's rounding, as long as its tokens are.

    Where a token differs, so do all that follow.
    """
    said, found = new_tokens(out, batch).cpu(), torch.stack(out.logits).cpu().double()
    rows = []
    for row in range(len(said)):
        same = (said[row] == answers[row]).tolist()
        steps = same.index(False) + 1 if False in same else len(same)
        rows.append(all(error(found[step, row], logits[step, row]) < 2e-2 for step in range(steps)))
    return rows


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def on(device, thing):
    if isinstance(thing, dict):
        return {name: value.to(device) for name, value in thing.items()}
    return thing if device == "cpu" else copy.deepcopy(thing).to(device)


@over_devices
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [8, 12, 64])
def test_the_kernels_are_attention(device, causal, size):
    """Queries are the last of the keys' tokens; three heads share one of the keys."""
    torch.manual_seed(0)
    lengths = [(5, 5), (1, 7), (3, 9)]
    parts = [(torch.randn(q, 6, size), torch.randn(k, 2, size), torch.randn(k, 2, size)) for q, k in lengths]
    want = []
    for q, k, v in parts:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)) if causal else None
        q, k, v = (x.transpose(0, 1)[None].double() for x in (q, k, v))
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        want.append(found[0].transpose(0, 1))
    ends = [F.pad(torch.tensor(ends).cumsum(0), (1, 0)).int().to(device) for ends in zip(*lengths)]
    joined = [torch.cat(part).to(device) for part in zip(*parts)]
    got = flash_attn_varlen_func(*joined, *ends, 5, 9, causal=causal)
    alone = [flash_attn_func(*(x[None].to(device) for x in part), causal=causal)[0] for part in parts]
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if device == "cpu" else {"atol": 4e-3, "rtol": 4e-3}
    for found in (got, torch.cat(alone)):
        torch.testing.assert_close(found.cpu().double(), torch.cat(want), **tolerance)


@over_devices
@over_cases
@over_methods
def test_generate_under_flash(case, model, name, device, monkeypatch):
    """On a GPU flash attention has float16: two tokens that are rated nearly the same may then change places.

    So they do in one image for SparseVLM in LLaVA, and on a CPU, too, if it rounds queries, keys and values so.
    """
    model, rows = on(device, model), []
    for layout, options in RUNS:
        batch = on(device, case.batch(case.samples(layout)))
        answers, logits, _ = known(case, layout, name)
        with under_flash(model, monkeypatch) as calls, attach(model, METHODS[name][0]):
            out = model.generate(**batch, **GREEDY, **TOLD, **options)
        assert calls["varlen" if layout == "ragged" else "dense"] > 0
        rows += alike(out, answers, logits, batch)
        if device == "cpu":
            assert torch.equal(new_tokens(out, batch), answers)
            close(out.logits, logits)
    assert sum(rows) >= 0.7 * len(rows)  # a mask that is wrong spoils all rows but the longest


@over_devices
@over_methods
@pytest.mark.parametrize("case", [LLAVA], ids=lambda case: case.name)
def test_beams_and_turns_under_flash(case, model, name, device, monkeypatch):
    """As under sdpa, token by token."""
    model, method = on(device, model), METHODS[name][0]
    batch = on(device, case.batch(case.samples("ragged")))

    def said():
        with attach(model, method):
            beams = model.generate(**batch, num_beams=2, do_sample=False, max_new_tokens=3)
            first = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
            more = F.pad(first.sequences, (0, 3), value=11)
            mask = F.pad(batch["attention_mask"], (0, more.shape[1] - batch["attention_mask"].shape[1]), value=1)
            again = {"input_ids": more, "attention_mask": mask, "past_key_values": first.past_key_values}
            return beams, model.generate(**again, **GREEDY)

    want = said()
    with under_flash(model, monkeypatch) as calls:
        got = said()
    assert calls["varlen"] > 0
    for found, expected in zip(got, want):
        assert torch.equal(found, expected)


@over_devices
@over_cases
def test_script_under_flash(case, model, device, monkeypatch):
    """Before the LLM, too: nothing of a shortened prompt looks like packed sequences."""
    model = on(device, model)
    for layout in ("single", "ragged"):
        batch = on(device, case.batch(case.samples(layout)))
        with attach(model, Script(keep=7)):
            want = model.generate(**batch, **GREEDY, **TOLD)
            with under_flash(model, monkeypatch):
                got = model.generate(**batch, **GREEDY, **TOLD)
        assert all(alike(got, new_tokens(want, batch).cpu(), torch.stack(want.logits).cpu().double(), batch))
        assert device != "cpu" or torch.equal(got.sequences, want.sequences)


@over_cases
@over_methods
def test_far_off(case, model, name):
    """A model that cuts nothing is not `alike`."""
    batch = case.batch(case.samples("single"))
    plain = model.generate(**batch, **GREEDY, **TOLD)
    assert error(plain.logits[0].double(), known(case, "single", name)[1][0]) > 6e-2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@over_cases
@over_methods
def test_generate_on_a_gpu(case, model, name):
    """The same under sdpa, where arithmetic is float32."""
    model = on("cuda", model)
    for layout, options in RUNS:
        batch = on("cuda", case.batch(case.samples(layout)))
        answers, logits, _ = known(case, layout, name)
        with attach(model, METHODS[name][0]):
            out = model.generate(**batch, **GREEDY, **TOLD, **options)
        assert torch.equal(new_tokens(out, batch).cpu(), answers)
        close([step.cpu() for step in out.logits], logits)
