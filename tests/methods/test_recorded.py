"""Choosing as one recorded CUDA graph: the same tokens and scores, call after call."""

from types import SimpleNamespace

import pytest
import torch

from vlprune import Script, ScriptPlus
from vlprune.methods import script as script_module
from vlprune.types import Query, TokenView

METHODS = [Script(keep=5), Script(keep=5, fusion="filter"), ScriptPlus(keep=5), ScriptPlus(keep=5, trust=0.5)]
FIELDS = ("kept", "order", "redundancy", "relevance", "scores", "gains")


def asked(device, own, seed):
    """36 tokens and a question, in the tokens' own space, which is the LLM's, or in another."""
    rand = torch.Generator().manual_seed(seed)
    view = TokenView(torch.randn(2, 36, 16, generator=rand).to(device), (6, 6))
    image = view.features if own else torch.randn(2, 36, 8, generator=rand).to(device)
    text = torch.randn(2, 1, image.shape[2], generator=rand).to(device)
    return view, Query(image, text, sign=-1, source="llm" if own else "clip", texts=("", ""))


def same(one, other):
    pairs = [(getattr(one, name), getattr(other, name)) for name in FIELDS]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def recorded(monkeypatch, device):
    """What was recorded; on a CPU functions are called as they are."""
    calls = []

    def replayed(function, tensors, settings):
        calls.append(hash((function, *settings.values())))
        return function(**tensors, **settings)

    if device.type != "cuda":
        monkeypatch.setattr(script_module, "fused_for", lambda features: SimpleNamespace(replayed=replayed))
    return calls


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_the_same_call_after_call(method, own, device, recorded):
    found = []
    for seed in range(8):  # on a GPU the second is recorded, the sixth reads its inputs in place
        view, query = asked(device, own, seed)
        found.append((method.select(view, query), method.choose_unrecorded(view, query, 5)))
    assert all(same(*both) for both in found)
    assert len({tuple(one.kept.flatten().tolist()) for one, _ in found}) > 1
    if device.type != "cuda":
        assert len(recorded) == 8
        assert len(set(recorded)) == 1


class Another(Script):
    """May read on the host, or count its calls."""


READ_ON_THE_HOST = [ScriptPlus(keep=5, trust="image"), ScriptPlus(keep=5, tau="otsu"), Another(keep=5)]


@pytest.mark.parametrize("method", READ_ON_THE_HOST, ids=str)
def test_what_is_read_on_the_host_is_not_recorded(method, device, recorded):
    view, query = asked(device, False, 0)
    assert not method.recordable
    assert same(method.select(view, query), method.choose_unrecorded(view, query, 5))
    assert not recorded
