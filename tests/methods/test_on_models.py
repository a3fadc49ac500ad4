"""Every method through the same cases, on tiny models of LLaVA, LLaVA-NeXT, InternVL and Qwen2.5-VL."""

import functools

import pytest
import torch

from tests.support.families import reference
from tests.support.method_models import CASES
from vlprune import attach, get_method, list_methods
from vlprune.methods.in_llm import InLLMMethod
from vlprune.models import family_of
from vlprune.models.tower_attention import record_call
from vlprune.types import Query, TokenView

STEPS, KEEP = 5, 7
GREEDY = {"do_sample": False, "max_new_tokens": STEPS}
LOGITS = {**GREEDY, "return_dict_in_generate": True, "output_logits": True}
BEFORE = [name for name in list_methods() if not isinstance(get_method(name), InLLMMethod)]

each_method = pytest.mark.parametrize("name", list_methods())
each_before = pytest.mark.parametrize("name", BEFORE)  # the others have a reference in tests/pruning/layers
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def made(case):
    return case.model()


def new_tokens(out, batch):
    return out[:, batch["input_ids"].shape[1] :]


@each_case
@each_method
def test_keep_all_is_the_plain_model(case, name):
    model = made(case)
    batch = case.batch(case.samples("ragged"))
    plain = model.generate(**batch, **LOGITS)
    with attach(model, get_method(name, keep=1.0)):
        out = model.generate(**batch, **LOGITS)
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))
    assert "generate" not in model.__dict__


@each_case
@each_method
def test_counts_order_and_determinism(case, name):
    model = made(case)
    samples = case.samples("ragged")
    batch = case.batch(samples)
    runs = []
    for _ in range(2):
        with attach(model, get_method(name, keep=KEEP), cache_bytes=0) as pruner:
            out = model.generate(**batch, **GREEDY)
        runs.append((out.tolist(), [record.kept.tolist() for record in pruner.records]))
    assert runs[0] == runs[1]
    kept = runs[0][1]
    visuals = [visual for sample in samples for visual in sample.visuals]
    merged = (
        get_method(name, keep=KEEP).layer_budgets(99, 2)[-1].merged if name == "sparsevlm" else 0
    )  # on top of what it keeps
    assert all(0 <= len(one) - min(KEEP, len(v.candidates)) <= merged for one, v in zip(kept, visuals))
    for one, visual in zip(kept, visuals):
        assert one == sorted(set(one))
        assert max(one) < len(visual.candidates)
    assert torch.equal(model.generate(**batch, **GREEDY), model.generate(**batch, **GREEDY))


@each_case
@each_method
def test_a_batch_is_its_rows_alone(case, name):
    model = made(case)
    samples = case.samples("ragged")
    with attach(model, get_method(name, keep=KEEP), cache_bytes=0) as pruner:
        together = new_tokens(model.generate(**(batch := case.batch(samples)), **GREEDY), batch)
        kept = [record.kept.tolist() for record in pruner.records]
        alone = []
        for row, sample in enumerate(samples):
            one = case.batch([sample])
            assert torch.equal(new_tokens(model.generate(**one, **GREEDY), one)[0], together[row])
            alone += [record.kept.tolist() for record in pruner.records]
    assert alone == kept


def chosen(case, model, method, sample, visual, question):
    """The method's selection of one image of a sample that holds nothing else, and the image's tokens (n, d)."""
    family = family_of(model)
    (modality,) = [modality for modality in family.modalities(model) if modality.kind == "image"]
    batch = case.batch([case.sample(1, visual, 1)])
    inputs = {name: batch[name] for name in ("pixel_values", "image_sizes", "image_grid_thw") if name in batch}
    with torch.no_grad(), record_call(family.attention_module(model, modality, inputs)) as call:
        output = model.base_model.get_image_features(**inputs)
        (vision,) = family.read_encoder_output(model, modality, output, inputs, visual.runs, call)
        features = case.encode(model, visual)[0][visual.candidates]

        def one(values):
            return None if values is None else values[None]

        cls = None if vision.cls is None else vision.cls[:1]
        view = TokenView(
            features[None],
            vision.shape.grid,
            one(vision.tower),
            one(vision.attention),
            one(vision.keys),
            cls,
            lambda states: family.project(model, states),
        )
        query = Query(features[None], question.mean(dim=0)[None, None], 1, "llm", (None,), (question,))
        return method.select(view, query if method.needs_query else None), features


@each_case
@each_before
def test_generate_equals_the_reference(case, name):
    model = made(case)
    samples = case.samples("ragged")
    batch = case.batch(samples)
    expected = []
    for sample in samples:
        question = reference.question(case, model, sample)
        selections = []
        for visual in sample.visuals:
            method = get_method(name, keep=min(KEEP, len(visual.candidates)))
            selections.append(chosen(case, model, method, sample, visual, question))
        kept = [sorted(selection.kept[0].tolist()) for selection, _ in selections]
        prompt, _ = reference.grow(case, model, reference.Prompt(), sample, reference.given(kept))
        rewrite(case, prompt, sample, selections)
        expected.append(reference.decode(case, model, prompt, STEPS))
    with attach(model, get_method(name, keep=KEEP)):
        out = model.generate(**batch, **GREEDY)
    assert new_tokens(out, batch).tolist() == expected


def rewrite(case, prompt, sample, selections):
    """Put each selection's tokens, changed or in another order, into the slots of what it kept."""
    start = 0
    for visual, (selection, features) in zip(sample.visuals, selections):
        kept = selection.kept[0].tolist()
        stays = visual.staying(sorted(kept))
        while prompt.ids[start] != case.placeholders["image"]:
            start += 1
        slots = [start + stays.index(visual.candidates[i]) for i in sorted(kept)]
        places = {i: prompt.places[slot] for i, slot in zip(sorted(kept), slots)}
        for number, (slot, i) in enumerate(zip(slots, kept)):
            changed = selection.embeddings is not None
            prompt.vectors[slot] = selection.embeddings[0, number] if changed else features[i]
            prompt.places[slot] = places[i]
        start += len(stays)
