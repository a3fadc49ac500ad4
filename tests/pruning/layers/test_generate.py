"""`generate` with tokens dropped between the layers, against the slow reference and the plain model."""

import copy
import functools
from dataclasses import replace

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import CompileConfig, DynamicCache, StaticCache

from tests.support import layers_reference as reference
from tests.support.deep_models import CASES, LAYERS, LLAVA, deep, machine, made
from tests.support.families import llava, others, qwen
from vlprune import Budget, FastV, PyramidDrop, SparseVLM, SparseVLMPlus, UnsupportedModel, attach

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


@functools.cache
def known(case, layout, name):
    """The same for what several tests ask about."""
    return expected(case, made(case), case.samples(layout), METHODS[name][1])


@functools.cache
def plain_generate(case, layout, options=()):
    """What the model says without a pruner, which several tests ask about; `options` are pairs."""
    return made(case).generate(**case.batch(case.samples(layout)), **GREEDY, **TOLD, **dict(options))


def close(found, expected, atol=5e-4):
    torch.testing.assert_close(torch.stack(tuple(found)).double(), expected, atol=atol, rtol=atol)


def stages(record):
    return [(layer, kept.tolist()) for layer, kept in record.stages]


@over_cases
@pytest.mark.parametrize("layout", ["single", "ragged"])
@over_methods
def test_greedy_equals_the_reference(case, model, layout, name):
    batch = case.batch(case.samples(layout))
    method, _ = METHODS[name]
    answers, logits, images = known(case, layout, name)
    plain = plain_generate(case, layout)
    with attach(model, method) as pruner:
        out = model.generate(**batch, **GREEDY, **TOLD)
        again = model.generate(**batch, **GREEDY, **TOLD)
    assert [stages(record) for record in pruner.records] == [image.stages for image in images]
    assert torch.equal(new_tokens(out, batch), answers)
    close(out.logits, logits)
    assert torch.equal(torch.stack(again.logits), torch.stack(out.logits))
    assert not torch.allclose(out.logits[0], plain.logits[0], atol=1e-2)


@on_llava
@over_methods
def test_a_cache_that_knows_no_config(case, model, name):
    """It gets its layers one by one, as the decoder comes to them."""
    batch = case.batch(case.samples("ragged"))
    answers, _, _ = known(case, "ragged", name)
    with attach(model, METHODS[name][0]):
        out = model.generate(**batch, **GREEDY, past_key_values=DynamicCache())
    assert torch.equal(new_tokens(out, batch), answers)


@over_cases
@pytest.mark.parametrize("mode", ["static cache", "no cache"])
@over_methods
def test_caches(case, model, mode, name):
    batch = case.batch(case.samples("ragged"))
    method, _ = METHODS[name]
    options = {"static cache": {"cache_implementation": "static"}, "no cache": {"use_cache": False}}[mode]
    answers, logits, _ = known(case, "ragged", name)
    with attach(model, method):
        for _ in range(2):  # a static cache is used again
            out = model.generate(**batch, **GREEDY, **TOLD, **options)
            assert torch.equal(new_tokens(out, batch), answers)
            close(out.logits, logits)


@on_llava
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_cache_that_is_reset(case, model, kind):
    """It knows no more of the images that it held."""
    if OLD and kind == "dynamic":
        pytest.skip("this transformers resets a dynamic cache to zeros, and not to nothing")
    batch, text = case.batch(case.samples("ragged")), case.batch([case.sample(4), case.sample(8), case.sample(6)])
    config = model.config.get_text_config()
    cache = StaticCache(config=config, max_cache_len=120) if kind == "static" else DynamicCache(config=config)
    plain = model.generate(**text, **GREEDY)
    with attach(model, PyramidDrop()):
        for _ in range(2):
            out = model.generate(**batch, **GREEDY, past_key_values=cache)
            assert torch.equal(new_tokens(out, batch), known(case, "ragged", "pyramiddrop")[0])
            cache.reset()
            assert torch.equal(model.generate(**text, **GREEDY, past_key_values=cache), plain)
            cache.reset()


@over_cases
@over_methods
def test_keep_all_is_the_plain_model(case, model, name):
    batch = case.batch(case.samples("ragged"))
    method = replace(METHODS[name][0], keep=1.0, **({"before": None} if "sparse" in name else {}))
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}, {"num_beams": 2}):
        if OLD and "num_beams" in options and not case.name.startswith("qwen"):
            continue  # this plain transformers mixes up the images of beams when a row has several
        plain = plain_generate(case, "ragged", tuple(options.items()))
        with attach(model, method) as pruner:
            out = model.generate(**batch, **GREEDY, **TOLD, **options)
        assert torch.equal(out.sequences, plain.sequences)
        assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))
        assert all(record.after == record.before for record in pruner.records)
    with torch.no_grad():
        plain = model(**batch, labels=batch["input_ids"])
        with attach(model, method):
            out = model(**batch, labels=batch["input_ids"])
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.loss, plain.loss)


@over_cases
@over_methods
def test_each_layer_holds_what_it_sees(case, model, name):
    samples = case.samples("single")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    _, _, seen, _ = machine(case).run(reference.row(case, model, samples[0]), slow, case.positions == ("grid",))
    with attach(model, method) as pruner:
        out = model.generate(**batch, do_sample=False, max_new_tokens=1, return_dict_in_generate=True)
    assert [layer.get_seq_length() for layer in out.past_key_values.layers] == seen
    record = pruner.last
    n = len(samples[0].visuals[0].candidates)
    assert (record.before, record.entering, record.after) == (n, n, len(record.kept))
    assert record.after == record.before - seen[0] + seen[-1]
    assert record.layer_average == pytest.approx(n - seen[0] + sum(seen) / LAYERS)
    assert method.accounting(n, LAYERS) == (n, pytest.approx(record.layer_average))
    assert record.ranking.shape == (n,)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
@over_methods
def test_beams_equal_the_reference(case, model, name):
    samples = case.samples("ragged")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    answers = [
        reference.beams(case, model, machine(case), reference.row(case, model, sample), slow, steps=3, width=2)
        for sample in samples
    ]
    with attach(model, method):
        out = model.generate(**batch, num_beams=2, do_sample=False, max_new_tokens=3)
        several = model.generate(**batch, num_beams=2, num_return_sequences=2, do_sample=False, max_new_tokens=3)
    assert torch.equal(new_tokens(out, batch), torch.tensor(answers))
    assert torch.equal(several[::2], out)


@on_llava
@over_methods
def test_eager_and_sdpa(case, model, name):
    batch = case.batch(case.samples("ragged"))
    method, _ = METHODS[name]
    answers, logits, _ = known(case, "ragged", name)
    model.set_attn_implementation("eager")
    try:
        with attach(model, method):
            out = model.generate(**batch, **GREEDY, **TOLD)
            static = model.generate(**batch, **GREEDY, **TOLD, cache_implementation="static")
    finally:
        model.set_attn_implementation("sdpa")
    for one in (out, static):
        assert torch.equal(new_tokens(one, batch), answers)
        close(one.logits, logits)


@on_llava
@over_methods
def test_prompt_lookup_and_assistants(case, model, name, monkeypatch):
    """Drafted tokens come with the prompt, and those that are refused are taken back from every layer's cache."""
    samples = [case.sample(3, case.image(0), 4, case.image(1), 4)]
    batch = case.batch(samples)
    method, slow = METHODS[name]
    answers, _, _ = expected(case, model, samples, slow, steps=8)
    samples[0].ids[-4:-1] = answers[0, :3].tolist()  # so that there is something to look up
    batch = case.batch(samples)
    answers, _, _ = expected(case, model, samples, slow, steps=8)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight[10:30] *= 1.5
    refused = []
    crop = DynamicCache.crop
    monkeypatch.setattr(DynamicCache, "crop", lambda self, size: refused.append(size) or crop(self, size))
    options = {"do_sample": False, "max_new_tokens": 8}
    with attach(model, method):
        for drafts in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model}, {"assistant_model": other}):
            out = model.generate(**batch, **drafts, **options)
            assert torch.equal(new_tokens(out, batch), answers)
    assert any(refused)


FILMED = (llava.LlavaNextVideo, qwen.Qwen25VL, qwen.Qwen3VL)
VIDEOS = [(deep(kind), layout) for kind in FILMED for layout in ("video", "mixed")]
OTHERS = [(deep(kind), "ragged") for kind in (llava.LlavaOnevision, qwen.Qwen2VL, others.SmolVLM, others.VipLlava)]


@pytest.mark.parametrize(("case", "layout"), [*VIDEOS, *OTHERS], ids=lambda part: getattr(part, "name", part))
@over_methods
def test_videos_and_other_families(case, layout, model, name):
    samples = case.samples(layout)
    batch = case.batch(samples)
    method, slow = METHODS[name]
    answers, logits, images = expected(case, model, samples, slow, steps=2)
    with attach(model, method) as pruner:
        out = model.generate(**batch, do_sample=False, max_new_tokens=2, **TOLD)
    assert [stages(record) for record in pruner.records] == [image.stages for image in images]
    assert torch.equal(new_tokens(out, batch), answers)
    close(out.logits, logits)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("llava_next", "internvl")], ids=lambda c: c.name
)
def test_budgets_per_tile(case, model):
    """Each tile is an image of its own, with as many tokens as the quota says."""
    samples = case.samples("ragged")
    with attach(model, FastV(keep=Budget(per_tile=3), layer=2)) as pruner:
        model.generate(**case.batch(samples), **GREEDY)
    with attach(model, FastV(keep=Budget(per_tile=3, compete=True), layer=2)) as competing:
        model.generate(**case.batch(samples), **GREEDY)
    differ = False
    for record, other in zip(pruner.records, competing.records):
        kept = set(record.kept.tolist())
        assert [len(kept & set(part.tokens.tolist())) for part in record.parts] == [3] * len(record.parts)
        assert other.after == 3 * len(other.parts)
        differ |= other.kept.tolist() != record.kept.tolist()
    assert differ


@on_llava
def test_positions_may_be_chosen(case, model):
    samples = case.samples("ragged")
    batch = case.batch(samples)
    slow = reference.FastV(KEEP, (2,))
    slow.renumbered = True
    answers, logits, _ = expected(case, model, samples, slow)
    with attach(model, FastV(keep=KEEP, layer=2), positions="renumbered"):
        out = model.generate(**batch, **GREEDY, **TOLD)
    assert torch.equal(new_tokens(out, batch), answers)
    close(out.logits, logits)
    slow = reference.PyramidDrop(0, (2, 3, 5))
    slow.renumbered = False
    answers, logits, _ = expected(case, model, samples, slow)
    with attach(model, PyramidDrop(), positions="original"):
        out = model.generate(**batch, **GREEDY, **TOLD)
    assert torch.equal(new_tokens(out, batch), answers)
    close(out.logits, logits)


@over_cases
def test_a_batch_is_its_rows(case, model):
    samples = case.samples("ragged")
    for name in METHODS:
        with attach(model, METHODS[name][0]) as pruner:
            together = model.generate(**case.batch(samples), **GREEDY)[:, -STEPS:].tolist()
            kept = [stages(record) for record in pruner.records]
            alone, each = [], []
            for sample in samples:
                alone += model.generate(**case.batch([sample]), **GREEDY)[:, -STEPS:].tolist()
                each += [stages(record) for record in pruner.records]
        assert (together, kept) == (alone, each)


@on_llava
def test_rows_and_calls_without_images(case, model):
    text, shown = case.sample(9), case.sample(3, case.image(0), 6)
    plain = model.generate(**case.batch([text]), **GREEDY)
    answers, _, _ = expected(case, model, [text, shown], METHODS["pyramiddrop"][1])
    batch = case.batch([text, shown])
    with attach(model, PyramidDrop()) as pruner:
        assert torch.equal(new_tokens(model.generate(**batch, **GREEDY), batch), answers)
        assert torch.equal(model.generate(**case.batch([text]), **GREEDY), plain)
        assert pruner.records == []


@on_llava
def test_one_generated_row_per_sample(case, model):
    batch = case.batch(case.samples("ragged"))
    with attach(model, SparseVLM(keep=5)):
        out = model.generate(**batch, do_sample=True, num_return_sequences=3, max_new_tokens=4)
    assert out.shape[0] == 9
    assert torch.equal(out[::3, : batch["input_ids"].shape[1]], batch["input_ids"])


@on_llava
def test_no_attention_weights_are_asked_for(case, model, monkeypatch):
    """What flash attention cannot give is not needed: only the model's own calls of sdpa happen."""
    calls = []
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: calls.append(args[0].shape[2]) or original(*args, **kwargs),
    )
    with attach(model, FastV(keep=KEEP, layer=2)) as pruner, torch.no_grad():
        prompt = case.batch(case.samples("single"))
        model(**prompt)
    size = prompt["input_ids"].shape[1]
    assert calls[-LAYERS:] == [size] * 2 + [size - pruner.last.before + KEEP] * 4


@on_llava
def test_a_compiled_step_is_not_compiled(case, model):
    compiling = CompileConfig(backend="eager", mode=None)
    compiling._compile_all_devices = True
    batch = case.batch(case.samples("ragged"))
    with attach(model, PyramidDrop()):
        out = model.generate(**batch, **GREEDY, cache_implementation="static", compile_config=compiling)
    assert torch.equal(new_tokens(out, batch), known(case, "ragged", "pyramiddrop")[0])


@on_llava
def test_chunked_prefill_is_refused(case, model):
    with attach(model, FastV(keep=KEEP)), pytest.raises(ValueError, match="whole prompt in one forward"):
        model.generate(**case.batch(case.samples("single")), **GREEDY, prefill_chunk_size=8)


@pytest.mark.parametrize("kind", [others.Gemma3, others.PaliGemma])
def test_models_that_cannot(kind):
    with pytest.raises(UnsupportedModel, match="before its LLM only"):
        attach(kind().model(), FastV(keep=3))


@on_llava
def test_a_failed_call_leaves_nothing_behind(case, model):
    batch, text = case.batch(case.samples("single")), case.batch([case.sample(8)])
    plain = model.generate(**text, **GREEDY)
    with attach(model, FastV(keep=KEEP)):
        whole = model.generate(**batch, **GREEDY)
        for place in (model.model, model.get_decoder().layers[3], model.lm_head):
            handle = place.register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(**batch)
            handle.remove()
            assert torch.equal(model.generate(**text, **GREEDY), plain)
        assert torch.equal(model.generate(**batch, **GREEDY), whole)
    assert torch.equal(model.generate(**text, **GREEDY), plain)
