"""Attaching and detaching: what is refused, and what is left behind (nothing)."""

import inspect
import threading

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaForCausalLM

import vlprune.models
from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import DppOnly, Random, Script, UnsupportedModel, attach
from vlprune.errors import MethodError
from vlprune.methods import Method

SMALL = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
GREEDY = {"do_sample": False, "max_new_tokens": 6}


def state(model):
    """Everything that a hook or a wrapper could change, of every module."""
    seen = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            kept = value
            if isinstance(value, dict):
                kept = (type(value), {inner: id(item) for inner, item in value.items()})
            seen[name, key] = kept if isinstance(kept, tuple) else id(value)
    return seen


@pytest.fixture(autouse=True)
def settled(model, single):
    model.generate(**single, **GREEDY)  # whatever transformers itself stores on first use


def test_detach_restores_the_model(model, processor, clip, ragged):
    before, plain = state(model), model.generate(**ragged, **GREEDY)
    pruner = attach(model, Script(keep=9), processor=processor, dual_encoder=clip)
    assert state(model) != before
    model.generate(**ragged, **GREEDY)
    model(**ragged)
    pruner.detach()
    assert state(model) == before
    assert torch.equal(model.generate(**ragged, **GREEDY), plain)
    pruner.detach()  # twice does no harm
    assert state(model) == before
    assert len(pruner.records) == 4  # still there to be read


def test_detach_restores_a_generate_of_ones_own(model, single):
    def own(*args, **kwargs):
        return "own"

    model.generate = own
    with attach(model, Random(keep=9)):
        assert model.generate is not own
    assert model.generate is own


def test_a_generate_that_somebody_still_holds_is_the_plain_one_after_detach(model, single):
    """A timer or a logger around `model.generate`, put there after attaching."""
    options = {"do_sample": False, "max_new_tokens": 4}
    plain = model.generate(**single, **options)
    pruner = attach(model, Random(keep=2))
    ours = model.generate
    model.generate = lambda *args, **kwargs: ours(*args, **kwargs)
    pruner.detach()
    assert torch.equal(model.generate(**single, **options), plain)
    del model.generate


class Broken(Method):
    name = "broken"

    def select(self, view, query):
        raise ZeroDivisionError("inside the method")


def explode(*args):
    raise ZeroDivisionError("inside the model")


@pytest.mark.parametrize("where", ["method", "tower", "projector", "decoder", "processor of logits", "user"])
def test_an_exception_leaves_nothing_behind(model, processor, single, where):
    before, plain = state(model), model.generate(**single, **GREEDY)
    method = Broken(keep=9) if where == "method" else Script(keep=9)
    parts = {"tower": "vision_tower", "projector": "multi_modal_projector", "decoder": "language_model"}

    def use():
        with attach(model, method, processor=processor) as pruner:
            if where == "user":
                raise ZeroDivisionError
            if where in parts:
                layer = getattr(model.model, parts[where])
                layer = layer.layers[0] if where == "decoder" else layer
                handle = layer.register_forward_pre_hook(explode)
                with pytest.raises(ZeroDivisionError):
                    model.generate(**single, **GREEDY)
                handle.remove()
                model.generate(**single, **GREEDY)  # still attached, and whole
                assert pruner.last.after == 9
                raise ZeroDivisionError
            model.generate(**single, **GREEDY, logits_processor=[explode] if "logits" in where else None)

    with pytest.raises(MethodError if where == "method" else ZeroDivisionError) as error:
        use()
    assert where != "method" or isinstance(error.value.__cause__, ZeroDivisionError)
    assert state(model) == before
    assert torch.equal(model.generate(**single, **GREEDY), plain)


def test_after_an_error_the_next_call_prunes_again(model, processor, single):
    expected = reference.padded(reference.answers(model, single, 9, 6), 6)
    with attach(model, Script(keep=9), processor=processor):
        with pytest.raises(ZeroDivisionError):
            model.generate(**single, **GREEDY, logits_processor=[explode])
        out = model.generate(**single, **GREEDY)
    torch.testing.assert_close(reference.new_tokens(out, single, 6), expected)


def test_a_second_pruner_is_refused(model, single):
    with attach(model, Random(keep=9)) as outer:
        with pytest.raises(RuntimeError, match="already has a pruner"):
            attach(model, Random(keep=4))
        model.generate(**single, **GREEDY)
        assert outer.last.after == 9
    with attach(model, Random(keep=4)) as pruner:
        model.generate(**single, **GREEDY)
        assert pruner.last.after == 4


def test_two_models_do_not_disturb_each_other(model, device, processor, ragged, single):
    other = tiny.llava(seed=1).to(device)
    expected = reference.answers(model, ragged, 9, 6), reference.answers(other, single, 5, 6)
    with attach(model, Script(keep=9), processor=processor) as one:
        with attach(other, Script(keep=5), processor=processor) as two:
            first = model.generate(**ragged, **GREEDY)
            second = other.generate(**single, **GREEDY)
        assert [record.after for record in one.records] == [9] * 4
        assert [record.after for record in two.records] == [5]
        plain = other.generate(**single, **GREEDY)  # detached while the first still is not
    torch.testing.assert_close(reference.new_tokens(first, ragged, 6), reference.padded(expected[0], 6))
    torch.testing.assert_close(reference.new_tokens(second, single, 6), reference.padded(expected[1], 6))
    assert torch.equal(plain, other.generate(**single, **GREEDY))


def test_generation_in_a_thread_of_its_own(model, single):
    """As with an iterating streamer."""
    with attach(model, Random(keep=9)) as pruner:
        thread = threading.Thread(target=lambda: model.generate(**single, **GREEDY))
        thread.start()
        thread.join()
        assert pruner.last.after == 9


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "llava",
            "model='llava': pass a loaded model, such as AutoModelForImageTextToText.from_pretrained('llava').",
        ),
        (LlamaForCausalLM(tiny.text_config()), "model is a LlamaForCausalLM, which takes no images, so there is "),
        (BertModel(BertConfig(**SMALL)), "model is a BertModel, which takes no images, so there is nothing to prune; "),
        (tiny.clip(), "model is a CLIPModel, which vlprune does not support; the nearest supported class is "),
    ],
    ids=["a name", "llama", "bert", "clip"],
)
def test_unsupported_models(given, sentence):
    with pytest.raises(UnsupportedModel) as error:
        attach(given, Random(keep=9))
    assert str(error.value).startswith(sentence)
    assert isinstance(error.value, TypeError)


def test_a_subclass_is_its_parents_family(model, single):
    class Mine(type(model)):
        pass

    model.__class__ = Mine
    with attach(model, Random(keep=9)) as pruner:
        model.generate(**single, **GREEDY)
    assert pruner.family.name == "llava"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"method": "script"}, TypeError, "method='script'"),
        ({"positions": "absolute"}, ValueError, "positions='absolute': choose from 'renumbered', 'original'"),
        ({"query": 5}, TypeError, "query=5"),
        ({"query": ["a", 5]}, TypeError, "one string"),
        ({"cache_bytes": -1}, ValueError, "cache_bytes=-1"),
        ({"cache_bytes": True}, ValueError, "cache_bytes=True"),
        ({"dual_encoder": 3}, TypeError, "dual_encoder=3"),
        ({"processor": 5}, TypeError, "processor=5: pass the model's processor or tokenizer, or leave it out."),
        ({"processor": "llava"}, TypeError, r"processor='llava': .* AutoProcessor.from_pretrained\('llava'\)"),
        ({"method": Script(relevance="clip")}, ValueError, "needs attach"),
    ],
)
def test_wrong_arguments(model, arguments, error, words):
    before = state(model)
    with pytest.raises(error, match=words):
        attach(model, arguments.pop("method", DppOnly(keep=9)), **arguments)
    assert state(model) == before


def test_more_tokens_than_the_image_has(model, single):
    with attach(model, Random(keep=tiny.TOKENS + 1)), pytest.raises(ValueError, match=r"keep=37.*only 36"):
        model.generate(**single, **GREEDY)


def test_flash_attention_and_original_positions(model, single):
    with attach(model, Random(keep=9), positions="original"):
        model.config.text_config._attn_implementation = "flash_attention_2"
        with pytest.raises(ValueError, match="packed sequences"):
            model.generate(**single, **GREEDY)
        model.config.text_config._attn_implementation = "sdpa"


def test_precomputed_vision_is_pruned_too(model, processor, single):
    """Newer transformers let the caller run the tower and pass its output."""
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
        pytest.skip("this transformers has no mm_encoder_outputs")
    with attach(model, Script(keep=9), processor=processor) as pruner, torch.no_grad():
        usual = model(**single).logits
        features = model.get_image_features(single["pixel_values"], return_dict=True)
        given = model(input_ids=single["input_ids"], mm_encoder_outputs={"image": features}).logits
        assert pruner.last.after == 9
    assert torch.equal(given, usual)


def test_families_describe_themselves():
    (family,) = [family for family in vlprune.models.list_families() if family.name == "llava"]
    assert family.classes == ("LlavaForConditionalGeneration",)
    assert family.positions == ("renumbered", "original")
    assert all(isinstance(text, str) and text for text in (family.prunes, family.relevance, family.tested))
