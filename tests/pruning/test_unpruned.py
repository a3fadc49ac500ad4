"""A call with images that goes past the pruner says so, once; a call that has none says nothing."""

import warnings

import pytest
import torch

from vlprune import FastV, Random, Script, attach

GREEDY = {"do_sample": False, "max_new_tokens": 3}


def merged(model, inputs):
    """The prompt's embeddings with its images in place, as somebody's own code makes them."""
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    features = model.model.get_image_features(inputs["pixel_values"]).pooler_output
    places = inputs["input_ids"] == model.config.image_token_id
    return embeds.masked_scatter(places[..., None], torch.cat([*features]))


#: From a model and its inputs to a call with images that goes past the pruner; and what is said of it.
PAST = {
    "forward": (lambda model, inputs: model.forward(**inputs), "LlavaForConditionalGeneration.forward, or its base"),
    "base model": (lambda model, inputs: model.model(**inputs), "LlavaForConditionalGeneration.forward, or its base"),
    "embeddings": (
        lambda model, inputs: model(inputs_embeds=merged(model, inputs), attention_mask=inputs["attention_mask"]),
        "was given inputs_embeds",
    ),
    "embeddings to generate": (
        lambda model, inputs: model.generate(
            inputs_embeds=merged(model, inputs), attention_mask=inputs["attention_mask"], **GREEDY
        ),
        "was given inputs_embeds",
    ),
    "decoder": (
        lambda model, inputs: model.get_decoder()(inputs_embeds=merged(model, inputs)),
        "decoder of the LlavaForConditionalGeneration was called",
    ),
}


@pytest.mark.parametrize("method", [Random(keep=9), FastV(keep=9)], ids=lambda method: method.name)
@pytest.mark.parametrize("way", PAST)
def test_it_warns_once_and_is_the_plain_model(model, single, way, method):
    call, words = PAST[way]
    with torch.no_grad():
        plain = call(model, single)
        with attach(model, method) as pruner:
            with pytest.warns(UserWarning, match=f"^vlprune: .*{words}") as told:
                found = call(model, single)
            assert len([one for one in told if "vlprune" in str(one.message)]) == 1
            assert "\n" not in str(told[0].message)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                call(model, single)  # said once
                model.generate(**single, **GREEDY)  # and the next call prunes
            assert pruner.last.after == 9
    one, other = (value if isinstance(value, torch.Tensor) else value[0] for value in (found, plain))
    assert torch.equal(one, other)


def test_calls_that_are_pruned_or_have_no_images_say_nothing(model, processor, single, mixed):
    text = {"input_ids": single["input_ids"][:, -6:]}
    with attach(model, Script(keep=9, relevance="llm"), processor=processor) as pruner, warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(**mixed, **GREEDY)
        out = model(**single, use_cache=True)
        model(input_ids=single["input_ids"][:, -1:], past_key_values=out.past_key_values)
        model(inputs_embeds=model.get_input_embeddings()(text["input_ids"][:, :1]))  # a step of somebody's loop
        model(**text)
        model.generate(**text, **GREEDY)
        model.forward(**text)
        model.model(**text)
        pruner.select(single)


def test_embeddings_beside_pixels_are_refused(model, single):
    embeds = model.get_input_embeddings()(single["input_ids"])
    with attach(model, Random(keep=9)):
        for call in (model, model.generate):
            with pytest.raises(ValueError, match="input_ids must be passed with the images, and not inputs_embeds"):
                call(inputs_embeds=embeds, pixel_values=single["pixel_values"])
