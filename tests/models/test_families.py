"""Every family against its plain model, and against the slow reference."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import transformers
from packaging.version import Version

from tests.support.families import CASES, reference
from tests.support.families.case import IMAGE, VIDEO, Sample
from vlprune import Budget, DppOnly, Random, Script, attach

pytestmark = [
    pytest.mark.filterwarnings("ignore:vlprune. .* has no family of its own"),
    pytest.mark.filterwarnings("ignore:.pixel_values_images. is deprecated:FutureWarning"),
]
STEPS, KEEP = 6, 7
QUOTA, LARGE = {"image": 3, "video": 2}, {"image": 10, "video": 5}  # large: more than some tiles and frames have
GREEDY = {"do_sample": False, "max_new_tokens": STEPS}
METHODS = {"dpp": DppOnly, "script": partial(Script, fusion="supplement")}
MODES = {"cache": {}, "no cache": {"use_cache": False}, "static cache": {"cache_implementation": "static"}}
EVERYWHERE = [(case, layout) for case in CASES for layout in case.layouts]
ONE_EACH = [(case, layout) for case, layout in EVERYWHERE if layout in ("ragged", "video")]
LARGEST = [(case, case.layouts[-1]) for case in CASES]
MIXED_UP = ("llava_next", "llava_next_video", "llava_onevision", "video_llava", "gemma3", "paligemma", "vipllava")
LEAP = ("qwen2_5_vl", "video")
OLD = Version(transformers.__version__) < Version("5.22")


def over(pairs):
    return pytest.mark.parametrize(("case", "layout"), pairs, ids=[f"{case.name}-{layout}" for case, layout in pairs])


def new_tokens(out, batch):
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    assert torch.equal(sequences[:, : batch["input_ids"].shape[1]], batch["input_ids"])
    return sequences[:, batch["input_ids"].shape[1] :]


def visuals(samples):
    return [visual for sample in samples for visual in sample.visuals]


def per_part(samples, quota, compete=False):
    """A budget with the quotas of the kinds of visuals that these samples have."""
    names = {"image": "per_tile", "video": "per_frame"}
    return Budget(**{names[visual.kind]: quota[visual.kind] for visual in visuals(samples)}, compete=compete)


def same(records, kept):
    return [record.kept.tolist() for record in records] == kept


# --- nothing dropped ---


@over(EVERYWHERE)
def test_the_reference_keeping_all_is_the_plain_model(case, layout, model):
    """Of the tests themselves: the reference reads this model as its own code does."""
    samples = case.samples(layout)
    batch = case.batch(samples)
    expected, _ = reference.answers(case, model, samples, reference.everything, STEPS)
    assert torch.equal(new_tokens(model.generate(**batch, **GREEDY), batch), expected)


@over(EVERYWHERE)
@pytest.mark.parametrize("mode", ["cache", "static cache", "two beams"])
def test_keep_all_is_the_plain_model(case, layout, model, mode):
    samples = case.samples(layout)
    if OLD and mode == "two beams" and (case.name == "internvl" or (case.name in MIXED_UP and layout == "ragged")):
        pytest.skip("this plain transformers mixes up the images of beams when a row has several (or several tiles)")
    options = {"two beams": {"num_beams": 2}, **MODES}[mode]
    options = {**GREEDY, **options, "return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    batch = case.batch(samples)
    plain = model.generate(**batch, **options)
    for positions in case.positions:
        with attach(model, Script(keep=1.0), positions=positions) as pruner:
            out = model.generate(**batch, **options)
        assert torch.equal(out.sequences, plain.sequences)
        assert len(out.logits) == len(plain.logits) == STEPS
        rounding = 1e-4 if OLD and mode == "two beams" else 0  # there the plain model runs the tower once per beam
        torch.testing.assert_close(out.logits, plain.logits, atol=rounding, rtol=rounding)
        torch.testing.assert_close(out.scores, plain.scores, atol=rounding, rtol=rounding)
        assert [record.after for record in pruner.records] == [len(v.candidates) for v in visuals(samples)]


@over(EVERYWHERE)
def test_more_than_there_is_keeps_all(case, layout, model):
    samples = case.samples(layout)
    batch = case.batch(samples)
    plain = model.generate(**batch, **GREEDY)
    for keep in (1000, Budget(per_tile=1000, per_frame=1000), Budget(per_tile=1000, per_frame=1000, compete=True)):
        with attach(model, DppOnly(keep=keep)):
            assert torch.equal(model.generate(**batch, **GREEDY), plain)


@over(EVERYWHERE)
def test_keep_all_forward_is_the_plain_model(case, layout, model):
    batch = case.batch(case.samples(layout))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.no_grad():
        plain = model(**batch, labels=labels)
        for positions in case.positions:
            with attach(model, Script(keep=1.0), positions=positions):
                out = model(**batch, labels=labels)
            assert torch.equal(out.logits, plain.logits)
            assert torch.equal(out.loss, plain.loss)


# --- something dropped ---


@over(EVERYWHERE)
@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_the_reference(case, layout, model, method):
    samples = case.samples(layout)
    batch = case.batch(samples)
    plain = new_tokens(model.generate(**batch, **GREEDY), batch)
    for positions in case.positions:
        original = positions == "original"
        expected, kept = reference.answers(case, model, samples, reference.total(method, KEEP), STEPS, original)
        with attach(model, METHODS[method](keep=KEEP), positions=positions) as pruner:
            found = new_tokens(model.generate(**batch, **GREEDY), batch)
        assert same(pruner.records, kept)
        assert torch.equal(found, expected)
        assert not torch.equal(found, plain)


@over(ONE_EACH)
@pytest.mark.parametrize("mode", ["no cache", "static cache"])
def test_caches(case, layout, model, mode):
    samples = case.samples(layout)
    batch = case.batch(samples)
    if OLD and case.name == "paligemma" and mode == "no cache":
        pytest.skip("this plain transformers lets the prompt see generated tokens when there is no cache")
    expected, _ = reference.answers(case, model, samples, reference.total("script", KEEP), STEPS)
    with attach(model, METHODS["script"](keep=KEEP)):
        assert torch.equal(new_tokens(model.generate(**batch, **GREEDY, **MODES[mode]), batch), expected)


@over(EVERYWHERE)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", ["each", "large", "competing", "ratio"])
def test_budgets(case, layout, model, method, budget):
    samples = case.samples(layout)
    batch = case.batch(samples)
    keep, choose = {
        "each": (per_part(samples, QUOTA), reference.each(method, QUOTA)),
        "large": (per_part(samples, LARGE), reference.each(method, LARGE)),
        "competing": (per_part(samples, QUOTA, compete=True), reference.competing(method, QUOTA)),
        "ratio": (0.3, reference.total(method, 0.3)),
    }[budget]
    expected, kept = reference.answers(case, model, samples, choose, 3)
    with attach(model, METHODS[method](keep=keep)) as pruner:
        found = new_tokens(model.generate(**batch, do_sample=False, max_new_tokens=3), batch)
    assert same(pruner.records, kept)
    assert torch.equal(found, expected)


@over(LARGEST)
def test_random(case, layout, model):
    samples = case.samples(layout)
    batch = case.batch(samples)
    with attach(model, Random(keep=KEEP, seed=3)) as pruner:
        found = new_tokens(model.generate(**batch, **GREEDY), batch)
    kept = [record.kept.tolist() for record in pruner.records]
    assert [len(one) for one in kept] == [KEEP] * len(visuals(samples))
    assert torch.equal(found, reference.answers(case, model, samples, reference.given(kept), STEPS)[0])


@over([(case, layout) for case, layout in EVERYWHERE if layout != "single"])
def test_beams_equal_the_reference(case, layout, model):
    samples = case.samples(layout)
    batch = case.batch(samples)
    prompts = reference.prompts(case, model, samples, reference.total("script", KEEP))
    expected = torch.tensor([reference.beams(case, model, prompt, 4, width=3) for prompt, _ in prompts])
    with attach(model, METHODS["script"](keep=KEEP)):
        out = model.generate(**batch, num_beams=3, do_sample=False, max_new_tokens=4)
    assert torch.equal(new_tokens(out, batch), expected)


@over(ONE_EACH)
def test_the_loss_is_that_of_the_shortened_rows(case, layout, model):
    samples = case.samples(layout)
    batch = case.batch(samples)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    outside = (mask == 0) | (mask.cumsum(1) == 1) | (ids == IMAGE) | (ids == VIDEO)  # nothing predicts a row's first
    with attach(model, METHODS["script"](keep=KEEP)), torch.no_grad():
        out = model(**batch, labels=ids.masked_fill(outside, -100))
    losses = []
    for row, (prompt, _) in zip(out.logits, reference.prompts(case, model, samples, reference.total("script", KEEP))):
        with torch.no_grad():
            logits = reference.logits(case, model, prompt)
        torch.testing.assert_close(row[-len(logits) :], logits, atol=5e-4, rtol=5e-4)
        targets = torch.tensor([-100 if token in (IMAGE, VIDEO) else token for token in prompt.ids])[1:]
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], targets, reduction="none")[targets != -100])
    torch.testing.assert_close(out.loss, torch.cat(losses).mean(), atol=1e-4, rtol=1e-4)


# --- turns ---


def second_turn(case, samples, batch, out, *pieces):
    """The second turn's prompt, without pixels, and what each row says in it."""
    said = [case.sample(*pieces, first=False) for _ in samples]
    ids = torch.cat([out.sequences, torch.tensor([sample.ids for sample in said])], dim=1)
    mask = torch.cat([batch["attention_mask"], torch.ones_like(ids[:, batch["input_ids"].shape[1] :])], dim=1)
    return {"input_ids": ids, "attention_mask": mask, **case.companions(ids)}, said


@over([(case, layout) for case, layout in EVERYWHERE if layout != "single"])
@pytest.mark.parametrize("pixels", ["not again", "again"])
def test_a_second_question(case, layout, model, pixels):
    samples = case.samples(layout)
    batch = case.batch(samples)
    with attach(model, METHODS["script"](keep=KEEP)) as pruner:
        out = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
        kept = [record.kept.tolist() for record in pruner.records]
        second, said = second_turn(case, samples, batch, out, 5)
        given = case.tensors(samples) if pixels == "again" else {}
        after = model.generate(**second, **given, past_key_values=out.past_key_values, **GREEDY)
        assert same(pruner.records, kept)
    expected = []
    choose = reference.given(kept)
    for sample, more, answer in zip(samples, said, new_tokens(out, batch).tolist()):
        prompt, _ = reference.grow(case, model, reference.Prompt(), sample, choose)
        prompt, _ = reference.grow(case, model, prompt, Sample(answer + more.ids), None)
        expected.append(reference.decode(case, model, prompt, STEPS))
    assert torch.equal(new_tokens(after, second), torch.tensor(expected))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("pixels", ["new", "all"])
def test_a_new_image_in_the_second_turn(case, model, pixels):
    """What the first turn kept stays; the new image is chosen by the new question."""
    if case.name == "gemma3":
        pytest.skip("behind a cache the plain model lets no image attend in both directions; see the next test")
    (sample,) = samples = case.samples("single")
    batch = case.batch(samples)
    with attach(model, METHODS["script"](keep=KEEP)) as pruner:
        out = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
        kept = [record.kept.tolist() for record in pruner.records]
        second, (more,) = second_turn(case, samples, batch, out, 3, case.image(9), 4)
        given = case.tensors([more if pixels == "new" else Sample([], [*sample.visuals, *more.visuals])])
        given.pop("batch_num_images", None)  # the two images of the row were cut into tiles as single ones are
        after = model.generate(**second, **given, past_key_values=out.past_key_values, **GREEDY)
        records = pruner.records
    prompt, _ = reference.grow(case, model, reference.Prompt(), sample, reference.given(kept))
    answer = new_tokens(out, batch)[0].tolist()
    turn = Sample(answer + more.ids, more.visuals)
    prompt, new = reference.grow(case, model, prompt, turn, reference.total("script", KEEP))
    assert [(record.row, record.image) for record in records] == [(0, 0), (0, 1)]
    assert same(records, kept + new)
    assert new_tokens(after, second)[0].tolist() == reference.decode(case, model, prompt, STEPS)


@pytest.mark.parametrize("case", [case for case in CASES if case.positions != ("grid",)], ids=lambda case: case.name)
def test_a_new_image_in_the_second_turn_keeping_all(case, model):
    """As the plain model has it. (Those with a grid number a new image behind a cache in a line, plain.)"""
    samples = case.samples("single")
    batch = case.batch(samples)
    answers = []
    for method in (None, Script(keep=1.0)):
        with attach(model, method) if method else nullcontext():
            out = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
            second, (more,) = second_turn(case, samples, batch, out, 3, case.image(9), 4)
            given = case.tensors([more])
            answers.append(model.generate(**second, **given, past_key_values=out.past_key_values, **GREEDY))
    assert torch.equal(*answers)


def talk(case, layout, model, cached=True):
    """Two turns, the second about text."""
    samples = case.samples(layout)
    batch = case.batch(samples)
    out = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
    second, _ = second_turn(case, samples, batch, out, 5)
    given = {"past_key_values": out.past_key_values} if cached else case.tensors(samples)
    return model.generate(**second, **given, **GREEDY, return_dict_in_generate=True, output_logits=True)


@over([(case, layout) for case, layout in ONE_EACH if (case.name, layout) != LEAP])
def test_keep_all_turns_are_the_plain_model(case, layout, model):
    plain = talk(case, layout, model)
    with attach(model, Script(keep=1.0)):
        out = talk(case, layout, model)
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))


@over([(case, layout) for case, layout in ONE_EACH if (case.name, layout) == LEAP])
def test_a_turn_after_a_video_is_that_of_the_plain_model_without_a_cache(case, layout, model):
    """With one, the plain model lets the new turn's positions leap to the end of the video's time."""
    plain = talk(case, layout, model, cached=False).sequences
    assert not torch.equal(plain, talk(case, layout, model).sequences)
    with attach(model, Script(keep=1.0)):
        assert torch.equal(talk(case, layout, model).sequences, plain)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "paligemma"], ids=lambda case: case.name)
def test_the_reference_of_two_turns_is_the_plain_model(case, model):
    """Of the tests themselves: without a cache, which would hide where a new image's tokens are placed."""
    (sample,) = samples = case.samples("single")
    batch = case.batch(samples)
    out = model.generate(**batch, **GREEDY, return_dict_in_generate=True)
    second, (more,) = second_turn(case, samples, batch, out, 3, case.image(9), 4)
    given = case.tensors([Sample([], [*sample.visuals, *more.visuals])])
    given.pop("batch_num_images", None)
    prompt, _ = reference.grow(case, model, reference.Prompt(), sample, reference.everything)
    turn = Sample(new_tokens(out, batch)[0].tolist() + more.ids, more.visuals)
    prompt, _ = reference.grow(case, model, prompt, turn, reference.everything)
    after = new_tokens(model.generate(**second, **given, **GREEDY), second)
    assert after[0].tolist() == reference.decode(case, model, prompt, STEPS)


# --- what is said about it ---


@over(EVERYWHERE)
def test_records(case, layout, model):
    samples = case.samples(layout)
    with attach(model, DppOnly(keep=KEEP)) as pruner, torch.no_grad():
        model(**case.batch(samples))
    places = [(row, i) for row, sample in enumerate(samples) for i in range(len(sample.visuals))]
    assert [(record.row, record.image) for record in pruner.records] == places
    for record, visual in zip(pruner.records, visuals(samples)):
        kept = record.kept.tolist()
        assert record.kind == visual.kind
        assert (record.before, record.after) == (len(visual.candidates), KEEP)
        assert kept == sorted(set(kept))
        assert len(kept) == KEEP
        assert record.structure == (visual.structure, len(visual.staying(kept)) - KEEP)
        assert [(part.name, tuple(part.grid)) for part in record.parts] == visual.parts
        assert [part.tokens.tolist() for part in record.parts] == visual.members
        if len(visual.parts) == 1:
            assert tuple(record.grid) == visual.parts[0][1]


@over(EVERYWHERE)
def test_the_cache_holds_what_stayed(case, layout, model):
    samples = case.samples(layout)
    with attach(model, DppOnly(keep=KEEP)) as pruner:
        out = model.generate(**case.batch(samples), do_sample=False, max_new_tokens=1, return_dict_in_generate=True)
    sizes = []
    for row, sample in enumerate(samples):
        mine = [record for record in pruner.records if record.row == row]
        text = len(sample.ids) - sum(len(visual.tokens) for visual in sample.visuals)
        sizes.append(text + sum(record.after + record.structure[1] for record in mine))
    assert out.past_key_values.get_seq_length() == max(sizes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_detach(case, model):
    batch = case.batch(case.samples("ragged"))
    plain = model.generate(**batch, **GREEDY)
    hooks = len(model._forward_pre_hooks), len(model._forward_hooks)
    pruner = attach(model, DppOnly(keep=KEEP))
    assert not torch.equal(model.generate(**batch, **GREEDY), plain)
    pruner.detach()
    assert "generate" not in model.__dict__
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == hooks
    assert torch.equal(model.generate(**batch, **GREEDY), plain)


@pytest.mark.skipif(OLD, reason="there the argument has its old name only")
@pytest.mark.parametrize("case", [case for case in CASES if case.name == "video_llava"], ids=["video_llava"])
def test_the_new_name_of_an_argument(case, model):
    batch = case.batch(case.samples("ragged"))
    with attach(model, METHODS["script"](keep=KEEP)):
        old = model.generate(**batch, **GREEDY)
        batch["pixel_values"] = batch.pop("pixel_values_images")
        assert torch.equal(model.generate(**batch, **GREEDY), old)


# --- refusals ---


@over([(case, layout) for case, layout in EVERYWHERE if layout in ("single", "video")])
def test_a_budget_for_the_other_kind_is_refused(case, layout, model):
    given, missing = ("per_tile", "per_frame") if layout == "video" else ("per_frame", "per_tile")
    with attach(model, DppOnly(keep=Budget(**{given: 3}))), pytest.raises(ValueError, match=f"add {missing}="):
        model.generate(**case.batch(case.samples(layout)), **GREEDY)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_positions_that_the_family_does_not_have_are_refused(case, model):
    for positions in {"renumbered", "original", "grid", "other"} - set(case.positions):
        with pytest.raises(ValueError, match=f"positions='{positions}'.*{case.positions[0]}"):
            attach(model, DppOnly(keep=KEEP), positions=positions)
