"""Settings, presets, and the sentences that say what is wrong or missing."""

import dataclasses
import re

import pytest
import torch

from tests.support.token_views import draw
from vlprune import TRIM, Budget, Random, Script, VisionZip, get_method, list_methods
from vlprune.types import TokenView


@pytest.mark.parametrize("name", ["cdpruner", "relevance_top_k", "script", "script_released", "trim"])
def test_relevance_and_sign(name):
    assert get_method(name, relevance="llm", sign=-1).needs_query
    for wrong in ({"relevance": "siglip"}, {"sign": 0}, {"sign": True}):
        (setting,) = wrong
        with pytest.raises(ValueError, match=f"^{setting}=.*choose from"):
            get_method(name, **wrong)


GRAPH = [
    *({"tau": 2.0}, {"tau": float("nan")}, {"tau": "high"}, {"graph": "grid"}),
    *({"gamma": -1.0}, {"gamma": float("inf")}, {"gamma": 200.0}),  # exp(200 · 0.7) is not finite
]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[(name, wrong) for name in ("graph_only", "script") for wrong in GRAPH],
        *[("script", wrong) for wrong in ({"kernel": "l"}, {"fusion": "sum"}, {"rho": 0.0}, {"rho": 1.5})],
        *[("visionzip", {"contextual": wrong}) for wrong in (-1, 64, 65, 2.0, True, "2")],
        *[("trim", {"adaptive": wrong}) for wrong in (1, "yes", None)],
    ],
)
def test_wrong_settings_are_refused_at_construction(name, wrong):
    (setting,) = wrong
    with pytest.raises(ValueError, match=f"^{setting}="):
        get_method(name, **wrong)


def test_one_sentence_names_the_setting_the_value_and_what_is_allowed():
    for wrong, sentence in (
        ({"tau": 2.0}, "tau=2.0: a cosine, from -1 to 1."),
        ({"tau": "high"}, "tau='high': a cosine from -1 to 1, or 'otsu' or 'quantile'."),
        ({"graph": "grid"}, "graph='grid': choose from 'bipartite', 'full', 'random'."),
    ):
        for name in ("script", "graph_only"):
            with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
                get_method(name, **wrong)


def test_methods_are_frozen_settings():
    method = Script(keep=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.keep = 3
    assert method == Script(keep=64) != Script(keep=63)
    assert hash(method) == hash(Script(keep=64))
    assert (method.tau, method.gamma, method.graph, method.kernel, method.fusion, method.rho, method.relevance) == (
        *(0.3, 5.0, "bipartite", "s_prime", "supplement", 0.5, "auto"),
    )


def test_random_depends_on_seed_and_size_alone():
    def kept(seed, images, n):
        return Random(keep=5, seed=seed).select(TokenView(torch.rand(images, n, 2), (1, n)), None).kept

    torch.manual_seed(1)
    one, many = kept(0, 1, 30), kept(0, 4, 30)
    assert torch.equal(many, one.expand(4, -1))
    assert not torch.equal(one, kept(1, 1, 30))
    assert not torch.equal(one, kept(0, 1, 31))
    assert (one.diff(dim=1) > 0).all()


@pytest.mark.parametrize("name", list_methods())
def test_every_preset_makes_a_method(name):
    for preset, settings in type(get_method(name)).presets.items():
        method = get_method(name, preset=preset)
        assert {key: getattr(method, key) for key in settings} == settings
        assert method != get_method(name)


def test_presets():
    assert get_method("visionzip", preset="128") == VisionZip(keep=128, contextual=20)
    assert get_method("visionzip", preset=128, keep=100) == VisionZip(keep=100, contextual=20)
    assert get_method("visionzip", preset="next-320") == VisionZip(keep=Budget(per_tile=64), contextual=10)
    assert get_method("trim", preset="adaptive", sign=1) == TRIM(keep=1.0, adaptive=True, sign=1)
    with pytest.raises(ValueError, match="preset='63': visionzip has no such preset; choose from 192"):
        get_method("visionzip", preset="63")
    with pytest.raises(ValueError, match="preset='64': random has no presets"):
        get_method("random", preset="64")


@pytest.mark.parametrize(
    ("m", "contextual"), [(192, 30), (128, 20), (64, 10), (32, 5), (16, 2), (1, 0), (3, 0), (4, 1)]
)
def test_visionzips_usual_share_is_that_of_its_presets(m, contextual):
    view, _ = draw(1, 1, 200)
    usual, said = (VisionZip(keep=m, contextual=c).select(view, None) for c in (None, contextual))
    assert torch.equal(usual.kept, said.kept)
    assert torch.equal(usual.embeddings, said.embeddings)
    assert usual.order.shape[1] == m - contextual - 1
    assert contextual == VisionZip.presets.get(str(m), {}).get("contextual", contextual)


def test_visionzip_keeps_a_dominant_token_of_the_smallest_image():
    """A quota of 64 with 10 contextual tokens must not fail on a tile that unpadding left with a few."""
    view, _ = draw(1, 1, 20)
    chosen = VisionZip(keep=0.25, contextual=9).select(view, None)
    assert chosen.kept.shape == (1, 5)
    fewer = VisionZip(keep=0.25, contextual=4).select(view, None)
    assert torch.equal(chosen.kept, fewer.kept)


@pytest.mark.parametrize(
    ("name", "missing", "words"),
    [
        ("attention_top_k", "attention", "the attention inside the vision tower"),
        ("visionzip", "attention", "the attention inside the vision tower"),
        ("visionzip", "keys", "the keys of the vision tower's attention"),
        ("visionzip", "tower", "the vision tower's hidden states"),
        ("visionzip", "project", "the projector from the vision tower to the LLM"),
        ("trim", "tower", "the vision tower's hidden states"),
        ("trim", "project", "the projector from the vision tower to the LLM"),
    ],
)
def test_what_the_model_did_not_give_is_named(name, missing, words):
    view, query = draw(2, 1, 20)
    sentence = f"{name} needs {words} (view.{missing}), which this model did not give."
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        get_method(name, keep=8).select(dataclasses.replace(view, **{missing: None}), query)


def test_visionzip_asks_for_no_more_than_it_uses():
    """Without CLS and without merging it is attention alone."""
    view, _ = draw(3, 2, 20, cls=False)
    bare = dataclasses.replace(view, tower=None, keys=None, project=None)
    want = get_method("attention_top_k", keep=8).select(bare, None).kept
    assert torch.equal(VisionZip(keep=8, contextual=0).select(bare, None).kept, want)


@pytest.mark.parametrize("name", ["average_pool", "cdpruner", "divprune", "graph_only", "script_released"])
def test_features_that_are_not_finite_are_refused(name):
    view, query = draw(4, 2, 20, grid=(4, 5))
    view.features[1, 3, 2] = float("nan")
    with pytest.raises(ValueError, match="features=nan at batch 1, token 3, channel 2: must be finite in float32"):
        get_method(name, keep=8).select(view, query)


def test_adaptive_trim_follows_the_image():
    """Sizes differ between images, none passes the limit, and equal tokens have no outliers."""
    view, query = draw(5, 8, 60)
    free, tight = (TRIM(keep=keep, adaptive=True).select(view, query) for keep in (1.0, 3))
    assert len(set(free.sizes)) > 2
    assert tight.sizes == tuple(min(size, 3) for size in free.sizes)
    flat = dataclasses.replace(query, image=query.image[:, :1].expand(-1, 60, -1))
    assert TRIM(keep=1.0, adaptive=True).select(view, flat).sizes == (1,) * 8


def test_trim_negates_the_dot_product_for_clip():
    view, query = draw(6, 1, 10)
    toward = query.image[0] @ query.text[0, 0]
    kept = TRIM(keep=4).select(view, query).kept[0]
    assert set(kept[:3].tolist()) == set(toward.argsort()[:3].tolist())
    other = TRIM(keep=4).select(view, dataclasses.replace(query, sign=1)).kept[0]
    assert set(other[:3].tolist()) == set(toward.argsort()[-3:].tolist())


def test_the_published_code_of_script_prefers_long_tokens():
    """A token that points away from the question a little but is long beats one that points to it and is short."""
    view, query = draw(7, 1, 8)
    image = torch.zeros_like(query.image)
    image[0, :, 0], image[0, 3, 0], image[0, 3, 1] = 1.0, 2.0, 2.0
    query = dataclasses.replace(query, image=image, text=torch.eye(7)[None, :1], sign=1)
    assert get_method("script_released", keep=1).select(view, query).kept.tolist() == [[3]]
    assert get_method("script", keep=1, fusion="released").select(view, query).kept.tolist() != [[3]]


def test_rounding_is_no_reason_to_choose():
    """Tokens that differ in their last bit are neither outliers nor more relevant, whatever their length."""
    view, query = draw(8, 1, 40)
    image = torch.full_like(query.image, 1000.0)
    image[0, [5, 30]] = torch.nextafter(image[0, [5, 30]], image.new_tensor(2000.0))
    text = torch.full_like(query.text, 1e-3)
    close = dataclasses.replace(query, image=image, text=text, sign=1)
    assert TRIM(keep=1.0, adaptive=True).select(view, close).sizes == (1,)
    far = dataclasses.replace(close, text=1000 * text)
    assert get_method("script_released", keep=4).select(view, far).relevance.unique().tolist() == [1.0]
    image[0, [5, 30]] = 1001.0  # a difference that means something
    assert TRIM(keep=1.0, adaptive=True).select(view, close).sizes == (3,)
    assert get_method("script_released", keep=4).select(view, far).relevance[0, [5, 30]].tolist() == [1.0, 1.0]
    assert get_method("script_released", keep=4).select(view, far).relevance.sum() == 2.0
