"""Layers that reuse a prefix give what plain ones give, of fewer tokens."""

from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch

from tests.support.families import CASES, made
from tests.support.families.case import Sample, words
from vlprune import Budget, attach
from vlprune.errors import UnsupportedModel
from vlprune.evaluation import answers
from vlprune.evaluation.answers import generate_answers
from vlprune.evaluation.prefix_cache import PrefixCache, prefix_cache_for, prefix_keys, reuse_prefix
from vlprune.evaluation.reference_methods import keep_all_tokens
from vlprune.methods import (
    AveragePool,
    FastV,
    PyramidDrop,
    Random,
    Script,
    ScriptPlus,
    UniformGrid,
    VisionZip,
    get_method,
)

METHODS = {
    "all": keep_all_tokens(),
    "uniform_grid": UniformGrid(keep=24),
    "average_pool": AveragePool(keep=24),
    "visionzip": VisionZip(keep=24),
    "fastv": FastV(keep=24),
    "pyramiddrop": PyramidDrop(keep=24),
    "sparsevlm": get_method("sparsevlm", keep=24),
    "sparsevlm_plus": get_method("sparsevlm_plus", keep=24),
    "both": UniformGrid(keep=100) + FastV(keep=24),
    "script": Script(keep=24),
    "padded": ScriptPlus(keep=Budget(adaptive=0.01, mean=24)),
    "script_first": Script(keep=100) + FastV(keep=24),
    "random": Random(keep=24),
}
LEAST = 1e-4


@pytest.fixture
def plain(monkeypatch):
    """Inside, no prefix is reused."""

    @contextmanager
    def inside():
        with monkeypatch.context() as patch:
            patch.setattr(answers, "reuse_prefix", lambda *args: nullcontext())
            yield

    return inside


def told(loaded, questions, methods):
    """By method and question: the answer, what was kept, and the logits."""
    found, logits = {}, []
    handle = loaded.model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output[:, -1]))
    try:
        for answered in generate_answers(loaded, questions, methods, batch=4):
            assert answered.reason is None, answered.reason
            assert untouched(loaded.model)
            for question, text, (record,), row in zip(
                answered.questions, answered.texts, answered.records, logits.pop()
            ):
                found[answered.method, question.number] = text, record.kept.tolist(), row
    finally:
        handle.remove()
    return found


def untouched(model):
    return not any("forward" in module.__dict__ for module in model.modules())


@contextmanager
def counting(model):
    """The tokens that pass through each layer's MLP."""
    counts = [0] * len(model.get_decoder().layers)

    def hook(number):
        def count(module, args):
            counts[number] += args[0].shape[:2].numel()

        return count

    layers = enumerate(model.get_decoder().layers)
    handles = [layer.mlp.up_proj.register_forward_pre_hook(hook(number)) for number, layer in layers]
    yield counts
    for handle in handles:
        handle.remove()


def test_answers_are_the_same(loaded, questions, plain):
    """Also to the second of two scenes; prompts about a colour or a shape are as those about a digit."""
    questions = [one for one in questions if one.kind not in ("color", "shape")]
    assert len({one.image_name for one in questions}) == 2
    with plain():
        expected = told(loaded, questions, METHODS)
    found = told(loaded, questions, METHODS)
    assert found.keys() == expected.keys()
    for key, (text, kept, logits) in expected.items():
        assert found[key][:2] == (text, kept), key
        torch.testing.assert_close(found[key][2], logits, atol=LEAST, rtol=LEAST)


def count_question_tokens(loaded, questions):
    return sum(len(ids) for ids in loaded.processor.tokenizer([question.text for question in questions])["input_ids"])


def test_an_image_passes_the_layers_once(loaded, questions):
    """Two scenes: what is before the question passes twice, as <s>, USER: and the image; the questions themselves all.

    A question's words come with <s> from the tokenizer, which stands for the ASSISTANT: behind them here.
    """
    asked_tokens = count_question_tokens(loaded, questions)
    cut = 12 * (24 + 2) + asked_tokens
    for name, first, later, ends in (
        ("all", 2 * 578 + asked_tokens, 2 * 578 + asked_tokens, 12 + 2),
        ("fastv", 2 * 578 + asked_tokens, cut, 12),
        ("uniform_grid", 2 * 26 + asked_tokens, 2 * 26 + asked_tokens, 12 + 2),
        ("script", cut, cut, 12),
        ("random", cut, cut, 12),
    ):
        with counting(loaded.model) as counts:
            told(loaded, questions, {name: METHODS[name]})
        assert counts == [first, later, later, later, later, ends], name


def test_what_all_tokens_left_serves_the_methods_inside(loaded, questions):
    asked_tokens = count_question_tokens(loaded, questions)
    with counting(loaded.model) as counts:
        found = generate_answers(
            loaded, questions, {name: METHODS[name] for name in ("all", "fastv", "pyramiddrop")}, batch=4
        )
        passed = {answered.method: list(counts) for answered in found}
    assert passed["fastv"][0] - passed["all"][0] == asked_tokens
    assert [passed["pyramiddrop"][number] - passed["fastv"][number] for number in (0, 1)] == [asked_tokens] * 2


def test_which_methods_share_a_cache():
    everything = PrefixCache()
    assert all(prefix_cache_for(METHODS[name], everything) is everything for name in ("all", "fastv", "sparsevlm"))
    assert all(prefix_cache_for(METHODS[name], everything) is None for name in ("script", "script_first"))
    assert all(
        prefix_cache_for(METHODS[name], everything) == PrefixCache() for name in ("uniform_grid", "visionzip", "both")
    )


def asked(model, batch, images, method, cache=None):
    """The logits of some steps; those of the plain model without a cache."""
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 4}
    with attach(model, method) as pruner, ExitStack() as stack:
        if cache is not None:
            stack.enter_context(reuse_prefix(pruner, cache, images, batch["input_ids"]))
        return torch.stack(model.generate(**batch, **options).logits)


def batches(case):
    """Two batches of questions about two images of one shape."""
    first = case.image(0)
    second = next(one for one in map(case.image, range(1, 20)) if (one.size, one.parts) == (first.size, first.parts))
    shown = {"a": case.sample(3, first, 6), "b": case.sample(3, second, 6)}
    for images in ("aab", "ba"):
        samples = [Sample(shown[a].ids[:-4] + words(4, seed), shown[a].visuals) for seed, a in enumerate(images)]
        yield images, case.batch(samples)


@pytest.mark.filterwarnings("ignore:vlprune. .* has no family of its own")
@pytest.mark.filterwarnings("ignore:.pixel_values_images. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "method", [keep_all_tokens(), UniformGrid(keep=5), FastV(keep=4)], ids=lambda method: method.name
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_families(case, method):
    """Where attention is not causal, or slides, nothing is reused."""
    model, cache = made(case), PrefixCache()
    for images, batch in batches(case):
        try:
            expected = asked(model, batch, images, method)
        except UnsupportedModel:
            pytest.skip("no layers to cut between")
        found = asked(model, batch, images, method, cache)
        torch.testing.assert_close(found, expected, atol=LEAST, rtol=LEAST)
        assert untouched(model)
    depth = len(model.get_decoder().layers) if not isinstance(method, FastV) else 1
    assert len(cache) == (0 if case.name in ("gemma3", "paligemma") else 2 * depth)


def test_a_full_memory_keeps_what_it_has(device):
    case = CASES[0]
    model, results = made(case), []
    for limit in (2**30, 40_000, 0):
        cache = PrefixCache(limit)
        results.append([asked(model, batch, images, UniformGrid(keep=5), cache) for images, batch in batches(case)])
        assert cache.nbytes == sum(prefix.nbytes for prefix in cache.values()) <= limit
        torch.testing.assert_close(results[-1], results[0], atol=LEAST, rtol=LEAST)


def test_a_prompt_without_images_or_with_images_at_unlike_places_is_plain():
    ids = torch.tensor([[1, 9, 9, 4], [1, 9, 4, 4]])
    assert prefix_keys(["a", "b"], ids, {9}) == ([], 0)
    assert prefix_keys(["a", "b"], ids, {8})[1] == 0


class Stopped(Exception):
    pass


def test_nothing_is_left_behind_by_an_error():
    case = CASES[0]
    model = made(case)
    images, batch = next(batches(case))

    def stop(*args):
        raise Stopped

    handle = model.get_decoder().layers[-1].mlp.register_forward_pre_hook(stop)
    with pytest.raises(Stopped):
        asked(model, batch, images, UniformGrid(keep=5), PrefixCache())
    handle.remove()
    assert untouched(model)
    assert "generate" not in model.__dict__
