"""`generate` with pruning attached, against the plain model and against the independent reference."""

from contextlib import contextmanager

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import CompileConfig, SiglipVisionConfig

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from tests.support.versions import needs_compile
from vlprune import DppOnly, Random, Script, attach
from vlprune.selection import greedy_map_features

STEPS, KEEP = 10, 9
GREEDY = {"do_sample": False, "max_new_tokens": STEPS}
DECODING = {
    "plain": {},
    "eager cache off": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "chunked prefill": {"prefill_chunk_size": 7},
    "no mask": {"attention_mask": None},
    "four beams": {"num_beams": 4},
    "beams returned": {"num_beams": 3, "num_return_sequences": 2},
    "repetition penalty": {"repetition_penalty": 1.3},
}


@pytest.fixture(params=["single", "ragged", "mixed"])
def batch(request):
    return request.getfixturevalue(request.param)


def with_options(batch, options):
    return {**batch, **GREEDY, **options}


@pytest.mark.parametrize("mode", ["plain", "eager cache off", "static cache", "chunked prefill", "no mask"])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
def test_greedy_equals_the_reference(model, processor, batch, mode, positions):
    expected = reference.answers(model, batch, KEEP, STEPS, positions == "original")
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions):
        out = model.generate(**with_options(batch, DECODING[mode]))
    torch.testing.assert_close(reference.new_tokens(out, batch, STEPS), reference.padded(expected, STEPS))


@needs_compile
def test_a_compiled_step(model, processor, ragged):
    """The decoding step is traced with the hooks on, and left as it was when they are off."""
    compiling = CompileConfig(backend="eager", mode=None)
    compiling._compile_all_devices = True
    options = {**GREEDY, "cache_implementation": "static", "compile_config": compiling}
    expected = reference.padded(reference.answers(model, ragged, KEEP, STEPS), STEPS)
    plain = model.generate(**ragged, **GREEDY)
    for _ in range(2):
        with attach(model, Script(keep=KEEP), processor=processor):
            out = model.generate(**ragged, **options)
        torch.testing.assert_close(reference.new_tokens(out, ragged, STEPS), expected)
        assert torch.equal(model.generate(**ragged, **options), plain)


def test_a_siglip_tower(device, processor, ragged):
    """No class token, all tokens read."""
    sizes = {"hidden_size": tiny.TOWER, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    tower = SiglipVisionConfig(**sizes, image_size=tiny.SIZE, patch_size=tiny.PATCH)
    model = tiny.llava(vision=tower, strategy="full").to(device)
    plain = model.generate(**ragged, **GREEDY)
    with attach(model, Script(keep=1.0), processor=processor):
        assert torch.equal(model.generate(**ragged, **GREEDY), plain)
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        assert not torch.equal(model.generate(**ragged, **GREEDY), plain)
    assert [(record.before, record.after) for record in pruner.records] == [(tiny.TOKENS, KEEP)] * 4


def test_pruning_changes_the_answer(model, processor, ragged):
    """Without this the other tests could pass with nothing dropped."""
    plain = model.generate(**ragged, **GREEDY)
    with attach(model, Script(keep=KEEP), processor=processor):
        assert not torch.equal(model.generate(**ragged, **GREEDY), plain)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations(device, processor, ragged, attention):
    model = tiny.llava(attention=attention).to(device)
    assert model.config.get_text_config()._attn_implementation == attention
    expected = reference.answers(model, ragged, KEEP, STEPS)
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**ragged, **GREEDY)
    torch.testing.assert_close(reference.new_tokens(out, ragged, STEPS), reference.padded(expected, STEPS))


@pytest.mark.parametrize("name", ["random", "dpp_only"])
def test_other_methods_equal_the_reference(model, batch, name):
    method = {"random": Random(keep=KEEP, seed=3), "dpp_only": DppOnly(keep=KEEP)}[name]
    with attach(model, method) as pruner:
        out = model.generate(**with_options(batch, {}))
    kept = [record.kept.tolist() for record in pruner.records]
    if name == "random":
        expected = reference.answers(model, batch, KEEP, STEPS, choose=lambda tokens: kept[0])
        assert all(one == kept[0] for one in kept)
    else:

        def choose(tokens):
            ones = torch.ones(1, len(tokens), device=tokens.device)
            return sorted(greedy_map_features(tokens[None], ones, KEEP)[0].tolist())

        expected = reference.answers(model, batch, KEEP, STEPS, choose=choose)
    torch.testing.assert_close(reference.new_tokens(out, batch, STEPS), reference.padded(expected, STEPS))


@contextmanager
def encoding_each_image_once(model, beams):
    """Before 5.22 the plain model's tower sees every image once per beam, and a GPU rounds another batch differently.

    Inside, the plain tower sees each image once, so that the rest can be compared bit for bit.
    """
    if beams == 1 or Version(transformers.__version__) >= Version("5.22"):
        yield
        return
    base, encode = model.model, model.model.get_image_features

    def once(pixel_values, **kwargs):
        output = encode(pixel_values=pixel_values[::beams], **kwargs)
        output.pooler_output = [image for image in output.pooler_output for _ in range(beams)]
        return output

    base.__dict__["get_image_features"] = once
    try:
        yield
    finally:
        del base.__dict__["get_image_features"]


@pytest.mark.parametrize("mode", [mode for mode in DECODING if mode != "chunked prefill"])  # plain: images are lost
@pytest.mark.parametrize("positions", ["renumbered", "original"])
def test_keep_all_is_the_plain_model(model, processor, batch, mode, positions):
    options = with_options(batch, DECODING[mode])
    if options.get("use_cache") is not False:
        options.update(return_dict_in_generate=True, output_logits=True, output_scores=True)
    several = (batch["input_ids"] == tiny.IMAGE).sum(1).max() > tiny.TOKENS
    if "num_beams" in options and several and Version(transformers.__version__) < Version("5.22"):
        pytest.skip("this plain transformers mixes up the images of beams when a row has several")
    with encoding_each_image_once(model, options.get("num_beams", 1)):
        plain = model.generate(**options)
    with attach(model, Script(keep=1.0), processor=processor, positions=positions) as pruner:
        out = model.generate(**options)
    assert [record.after for record in pruner.records] == [tiny.TOKENS] * len(batch["pixel_values"])
    if isinstance(plain, torch.Tensor):
        assert torch.equal(out, plain)
        return
    assert torch.equal(out.sequences, plain.sequences)
    assert len(out.logits) == len(plain.logits) > 0
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))
    assert all(torch.equal(a, b) for a, b in zip(out.scores, plain.scores))


def embedded(model, batch, row):
    """The pruned prompt of one row, made by the reference."""
    ids, pixels = list(reference.rows(batch))[row]
    return reference.prompt(model, ids, pixels, reference.script(model, reference.question(ids), KEEP))[0][None]


@pytest.mark.parametrize("options", [{"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}])
def test_beams_equal_the_plain_model_on_the_pruned_prompt(model, processor, batch, options):
    options = {**options, "do_sample": False, "max_new_tokens": STEPS}
    expected = [
        model.generate(inputs_embeds=embedded(model, batch, row), **options) for row in range(len(batch["input_ids"]))
    ]
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**batch, **options)
    assert out.shape[0] == len(batch["input_ids"]) * options.get("num_return_sequences", 1)
    expected = torch.cat([torch.nn.functional.pad(one, (0, STEPS - one.shape[1])) for one in expected]).cpu()
    torch.testing.assert_close(reference.new_tokens(out, batch, STEPS), expected)


def test_sampling_equals_the_plain_model_on_the_pruned_prompt(model, processor, single):
    options = {"do_sample": True, "temperature": 2.0, "max_new_tokens": STEPS}
    torch.manual_seed(7)
    expected = model.generate(inputs_embeds=embedded(model, single, 0), **options)
    with attach(model, Script(keep=KEEP), processor=processor):
        torch.manual_seed(7)
        first = model.generate(**single, **options)
        torch.manual_seed(7)
        again = model.generate(**single, **options)
        other = model.generate(**single, **options)
    new = first[:, single["input_ids"].shape[1] :]
    assert torch.equal(new, expected)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sampling_several_sequences(model, processor, ragged):
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**ragged, do_sample=True, num_return_sequences=3, max_new_tokens=4)
    assert out.shape[0] == 9
    assert torch.equal(out[::3, : ragged["input_ids"].shape[1]], ragged["input_ids"])


@pytest.mark.parametrize("images", [1, 2])
def test_prompt_lookup_and_assistant(model, device, processor, images):
    batch = tiny.inputs(processor, ["what color is the cat and what color is the cat ?"], [images], device)
    expected = reference.padded(reference.answers(model, batch, KEEP, 16), 16)
    assistant = tiny.llava(seed=1, layers=1).to(device)
    options = {"do_sample": False, "max_new_tokens": 16}
    with attach(model, Script(keep=KEEP), processor=processor):
        looked_up = model.generate(**batch, prompt_lookup_num_tokens=3, **options)
        assisted = model.generate(**batch, assistant_model=assistant, **options)
        with attach(assistant, Script(keep=KEEP), processor=processor):
            both = model.generate(**batch, assistant_model=assistant, **options)
    for out in (looked_up, assisted, both):
        torch.testing.assert_close(reference.new_tokens(out, batch, 16), expected)


def test_a_model_may_assist_itself(model, device, processor, single):
    """Its own generate is entered again while it generates."""
    expected = reference.padded(reference.answers(model, single, KEEP, 16), 16)
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**single, assistant_model=model, do_sample=False, max_new_tokens=16)
    torch.testing.assert_close(reference.new_tokens(out, single, 16), expected)


def test_guidance_runs_its_unconditional_prompt_unpruned(model, processor, single):
    options = {**GREEDY, "guidance_scale": 2.0, "return_dict_in_generate": True, "output_scores": True}
    plain = model.generate(**single, **options)
    with attach(model, Script(keep=1.0), processor=processor):
        out = model.generate(**single, **options)
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, plain.scores))


def test_text_only_calls_are_the_plain_model(model, device, processor):
    batch = tiny.inputs(processor, ["tell me about the cat", "is it a dog ?"], [0, 0], device)
    batch.pop("pixel_values", None)
    plain = model.generate(**batch, **GREEDY)
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        assert torch.equal(model.generate(**batch, **GREEDY), plain)
        assert pruner.records == []
        with pytest.raises(LookupError, match="no images"):
            _ = pruner.last


def test_the_same_image_twice(model, processor, single):
    batch = {name: torch.cat([value, value]) for name, value in single.items()}
    expected = reference.answers(model, batch, KEEP, STEPS)
    assert expected[0] == expected[1]
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        out = model.generate(**batch, **GREEDY)
    torch.testing.assert_close(reference.new_tokens(out, batch, STEPS), reference.padded(expected, STEPS))
    assert pruner.records[0].kept.tolist() == pruner.records[1].kept.tolist()


def test_selection_does_not_depend_on_the_batch(model, processor, ragged):
    with attach(model, Script(keep=KEEP), processor=processor, cache_bytes=0) as pruner:
        model.generate(**ragged, **GREEDY)
        together = [record.kept.tolist() for record in pruner.records]
        alone = []
        for ids, pixels in reference.rows(ragged):
            ids = torch.tensor([ids], device=model.device)
            model.generate(input_ids=ids, pixel_values=pixels, **GREEDY)
            alone += [record.kept.tolist() for record in pruner.records]
    assert together == alone


def test_the_tower_runs_once(model, processor, ragged):
    runs = []
    model.model.vision_tower.register_forward_hook(lambda *_: runs.append(1))
    with attach(model, Script(keep=KEEP), processor=processor):
        model.generate(**ragged, **GREEDY)
        assert len(runs) == 1
        model.generate(**{**ragged, "pixel_values": ragged["pixel_values"] + 1}, num_beams=2, max_new_tokens=3)
    assert len(runs) == 2


def test_the_language_model_never_sees_the_whole_prompt(model, processor, ragged):
    widths = []
    model.model.language_model.layers[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    with attach(model, Script(keep=KEEP), processor=processor):
        model.generate(**ragged, **GREEDY)
    real = ragged["attention_mask"].sum(1)
    images = torch.tensor([1, 2, 1], device=real.device)
    assert widths == [int((real - images * (tiny.TOKENS - KEEP)).max())] + [1] * (STEPS - 1)


def test_decoding_steps_are_the_models_own(model, processor, ragged):
    """After the prompt is in the cache, ids go through untouched."""
    fed = []
    with attach(model, Script(keep=KEEP), processor=processor):
        model.register_forward_pre_hook(
            lambda _, args, kwargs: fed.append(kwargs["input_ids"] is None), with_kwargs=True
        )
        model.generate(**ragged, **GREEDY)
    assert fed == [True] + [False] * (STEPS - 1)


def test_one_call_of_the_method_for_images_of_equal_size(model, processor, ragged, monkeypatch):
    calls = []
    select = Script.select
    monkeypatch.setattr(Script, "select", lambda *args: calls.append(args[1].features.shape) or select(*args))
    with attach(model, Script(keep=KEEP), processor=processor):
        model.generate(**ragged, **GREEDY)
    assert calls == [(4, tiny.TOKENS, tiny.WIDTH)]
