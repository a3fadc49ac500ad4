"""What holds for every method that chooses before the LLM, whatever it computes."""

import dataclasses

import pytest
import torch

from tests.support.token_views import draw, each, one
from vlprune import get_method, list_methods
from vlprune.methods import Accounting, InLLMMethod

NAMES = [name for name in list_methods() if not isinstance(get_method(name), InLLMMethod)]
GRIDS = [(1, 1), (1, 2), (3, 5), (6, 6)]

every = pytest.mark.parametrize("name", NAMES)
without_cls = pytest.mark.parametrize("cls", [True, False], ids=["cls", "no cls"])


def budgets(n):
    return sorted({1, 2, n // 3, n - 1, n} & set(range(1, n + 1)))


def same(left, right, b, rough=1e-5):
    """One image's selection is row b of another."""
    assert torch.equal(left.kept[0], right.kept[b])
    assert (left.embeddings is None) == (right.embeddings is None)
    if left.embeddings is not None:
        torch.testing.assert_close(left.embeddings[0], right.embeddings[b], rtol=rough, atol=rough)


@every
@without_cls
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_exactly_as_many_as_asked_each_once(name, grid, cls):
    n = grid[0] * grid[1]
    view, query = draw(5, 3, n, grid=grid, cls=cls)
    for m in budgets(n):
        chosen = get_method(name, keep=m).select(view, query)
        assert chosen.kept.shape == (3, m)
        assert chosen.kept.dtype == torch.int64
        for row in chosen.kept.tolist():
            assert len(set(row)) == m
            assert set(row) <= set(range(n))
        if chosen.embeddings is not None:
            assert chosen.embeddings.shape == (3, m, view.features.shape[2])
            assert chosen.embeddings.dtype == view.features.dtype


@every
def test_the_order_in_the_prompt(name):
    view, query = draw(6, 2, 36, grid=(6, 6))
    kept = get_method(name, keep=16).select(view, query).kept
    assert get_method(name).reorders == (name in {"trim", "visionzip"})
    if name == "visionzip":  # CLS, 13 dominant patches, 2 contextual
        assert (kept[:, 1:14].diff(dim=1) > 0).all()
        assert (kept[:, 14:].diff(dim=1) > 0).all()
    elif name == "trim":  # 15 tokens, then the mean of the others, where the last of these stood
        assert (kept[:, :15].diff(dim=1) > 0).all()
        assert [max(set(range(36)) - set(row[:15])) for row in kept.tolist()] == kept[:, 15].tolist()
    else:
        assert (kept.diff(dim=1) > 0).all()


@every
@without_cls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_tokens_stay_as_they_are(name, cls, dtype):
    view, query = draw(7, 2, 15, grid=(3, 5), cls=cls, dtype=dtype, copies=4, zeros=1)
    for keep in (15, 1.0):
        chosen = get_method(name, keep=keep).select(view, query)
        assert chosen.kept.tolist() == [list(range(15))] * 2
        assert chosen.embeddings is None


@every
def test_an_image_does_not_see_its_neighbours(name):
    view, query = draw(8, 4, 30, grid=(5, 6))
    for m in budgets(30):
        method = get_method(name, keep=m)
        together = method.select(view, query)
        for b in range(4):
            same(method.select(*one(view, query, b)), together, b)


@every
def test_the_same_again_and_nothing_is_touched(name):
    view, query = draw(9, 2, 30, grid=(5, 6))
    before = {key: value.clone() for key, value in vars(view).items() if isinstance(value, torch.Tensor)}
    state = torch.random.get_rng_state()
    first = get_method(name, keep=11).select(view, query)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(123)
    again = get_method(name, keep=11).select(view, query)
    for field in dataclasses.fields(first):
        left, right = getattr(first, field.name), getattr(again, field.name)
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
    assert all(torch.equal(getattr(view, key), value) for key, value in before.items())


@every
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to compare with")
def test_a_gpu_chooses_alike(name):
    view, query = draw(12, 4, 90, grid=(9, 10), copies=10, zeros=3)
    for m in budgets(90):
        method = get_method(name, keep=m)
        host, gpu = (
            method.select(view, query),
            method.select(*(each(given, torch.Tensor.cuda) for given in (view, query))),
        )
        assert gpu.kept.is_cuda
        assert torch.equal(gpu.kept.cpu(), host.kept)
        if host.embeddings is not None:
            torch.testing.assert_close(gpu.embeddings.cpu(), host.embeddings, rtol=1e-4, atol=1e-5)


@every
def test_half_precision_is_read_as_it_stands(name):
    """The choice is that of the same numbers in float32; merged embeddings come back in half precision."""
    half, query = draw(10, 2, 30, grid=(5, 6), dtype=torch.bfloat16)
    full, wide_query = (each(given, torch.Tensor.float) for given in (half, query))
    low, high = (get_method(name, keep=9).select(v, q) for v, q in ((half, query), (full, wide_query)))
    assert torch.equal(low.kept, high.kept)
    assert (low.embeddings is not None) == get_method(name).merges
    if low.embeddings is not None:
        assert low.embeddings.dtype == torch.bfloat16
        torch.testing.assert_close(low.embeddings.float(), high.embeddings, rtol=2e-2, atol=2e-2)


@every
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_tokens_that_are_all_the_same(name, value):
    """Nothing to choose by: the lower index wins, and the mean of equal tokens is that token."""
    view, query = draw(11, 2, 12, grid=(3, 4))
    alike = {key: torch.full_like(getattr(view, key), value) for key in ("tower", "features", "keys", "attention")}
    view = dataclasses.replace(view, **alike)
    query = dataclasses.replace(query, image=torch.full_like(query.image, value))
    chosen = get_method(name, keep=5).select(view, query)
    kept = chosen.kept[0].tolist()
    assert len(set(kept)) == 5
    assert torch.equal(chosen.kept[0], chosen.kept[1])
    if (
        name in {"attention_top_k", "cdpruner", "divprune", "dpp_only", "relevance_top_k", "script_released"}
        or name == "graph_only"
    ):
        assert kept == [0, 1, 2, 3, 4]
    elif name == "trim":
        assert kept == [0, 1, 2, 3, 11]
    elif name == "visionzip":  # CLS in the first free place, patches 0 to 2, one target: the first that is left
        assert kept == [4, 0, 1, 2, 3]
    elif name == "average_pool":
        assert chosen.embeddings.unique().tolist() == [value]


@every
def test_what_enters_is_what_every_layer_sees(name):
    assert get_method(name, keep=64).accounting(576, 32) == Accounting(64, 64.0)
    assert get_method(name, keep=0.25).accounting(100, 7) == Accounting(entering=25, layer_average=25.0)
    with pytest.raises(ValueError, match="only 9 visual tokens"):
        get_method(name, keep=10).accounting(9, 4)
