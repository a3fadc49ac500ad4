"""Relevance in the space that a dual encoder's text and image share."""

from types import SimpleNamespace

import pytest
import torch
from transformers import SiglipConfig, SiglipModel

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import Script, attach
from vlprune.pruning import dual_encoder
from vlprune.pruning.dual_encoder import DualEncoder, clip_text, load_text_half
from vlprune.selection import relevance_scores, select_script

KEEP = 9
GREEDY = {"do_sample": False, "max_new_tokens": 3}


@torch.no_grad()
def similarity(model, clip, processor, pixels, text):
    """Image side (n, c) and text side (c,), written from the definition with CLIP's own parts."""
    states = reference.encode(model, pixels[None])[0][0]
    image = clip.visual_projection(clip.vision_model.post_layernorm(states))
    ids = [1, *processor.tokenizer(text, add_special_tokens=False)["input_ids"], tiny.END]
    words = clip.text_model(torch.tensor([ids], device=model.device))
    return image, clip.text_projection(words.last_hidden_state[0, -1])


@pytest.mark.parametrize("sign", [None, 1, -1])
def test_relevance_is_the_definition(model, clip, processor, single, sign):
    with attach(model, Script(keep=KEEP, sign=sign), processor=processor, dual_encoder=clip) as pruner:
        out = model.generate(**single, **GREEDY)
    record = pruner.last
    used = -1 if sign is None else sign
    assert (record.source, record.sign) == ("clip", used)
    image, text = similarity(model, clip, processor, single["pixel_values"][0], "what color is the cat ?")
    raw = used * torch.cosine_similarity(image, text[None], dim=-1)
    expected = (raw - raw.min()) / (raw.max() - raw.min())
    torch.testing.assert_close(record.relevance, expected, atol=1e-5, rtol=1e-5)
    tokens = reference.encode(model, single["pixel_values"])[0][1]
    chosen = select_script(tokens[None], None, KEEP, relevance=expected[None]).kept[0].tolist()
    assert record.kept.tolist() == chosen
    answer = reference.answers(model, single, KEEP, 3, choose=lambda _: chosen)
    torch.testing.assert_close(reference.new_tokens(out, single, 3), reference.padded(answer, 3))


def test_every_image_has_its_rows_question(model, clip, processor, ragged):
    with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=clip) as pruner:
        model.generate(**ragged, **GREEDY)
    for record, pixels in zip(pruner.records, ragged["pixel_values"]):
        image, text = similarity(model, clip, processor, pixels, record.query)
        expected = relevance_scores(image[None], text[None, None], sign=-1)[0]
        torch.testing.assert_close(record.relevance, expected, atol=1e-4, rtol=1e-4)


def test_the_source_can_be_chosen(model, clip, processor, single):
    for relevance, source in (("auto", "clip"), ("clip", "clip"), ("llm", "llm")):
        method = Script(keep=KEEP, relevance=relevance)
        with attach(model, method, processor=processor, dual_encoder=clip) as pruner:
            model.generate(**single, **GREEDY)
        assert pruner.last.source == source
    assert pruner.last.sign == 1


def test_the_towers_run_once(model, clip, processor, ragged):
    runs = {"own": 0, "other": 0}
    handles = [
        model.model.vision_tower.register_forward_hook(lambda *_: runs.update(own=runs["own"] + 1)),
        clip.vision_model.register_forward_hook(lambda *_: runs.update(other=runs["other"] + 1)),
    ]
    with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=clip):
        model.generate(**ragged, **GREEDY)
    for handle in handles:
        handle.remove()
    assert runs == {"own": 1, "other": 0}


def test_a_config_may_name_its_sign(model, device, processor, single):
    clip = tiny.clip().to(device)
    clip.config.relevance_sign = 1
    with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=clip) as pruner:
        model.generate(**single, **GREEDY)
    assert pruner.last.sign == 1


def test_long_questions_go_in_chunks(model, device, processor):
    clip = tiny.clip(positions=8).to(device)
    dual = DualEncoder(clip, processor.tokenizer, model)
    text = "what color is the big red cat in the image and is it like the other one"
    words = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert dual.chunks(text) == [[1, *words[i : i + 6], tiny.END] for i in range(0, len(words), 6)]
    assert len(dual.chunks(text)) == 3
    assert dual.chunks("cat") == [[1, tiny.WORDS.index("cat"), tiny.END]]
    with torch.no_grad():
        parts = [clip.text_model(torch.tensor([chunk], device=device)) for chunk in dual.chunks(text)]
        expected = torch.stack([clip.text_projection(part.last_hidden_state[0, -1]) for part in parts]).mean(0)
    found = dual.text([text, "cat"])
    assert found.shape == (2, 1, 16)
    torch.testing.assert_close(found[0, 0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], dual.text(["cat"])[0], atol=1e-5, rtol=1e-5)


QUESTIONS = ["cat", "what color is the cat ?", "is the big red cat like the other one in the image ?"]


@pytest.mark.parametrize("end", [tiny.END, 2])  # old configs say 2 and mean the highest id
def test_one_text_by_parts_is_the_whole_tower(model, device, processor, end):
    clip = tiny.clip().to(device)
    clip.config.text_config.eos_token_id = clip.text_model.eos_token_id = end
    dual = DualEncoder(clip, processor.tokenizer, model)
    for text in QUESTIONS:
        (ids,) = dual.chunks(text)
        for row in (ids, [*ids, *ids[1:]]):  # with a second text after the end
            with torch.no_grad():
                want = clip.get_text_features(input_ids=torch.tensor([row], device=device)).pooler_output
                got = clip_text(clip, row)
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(dual.text([text]), dual.text([text, *QUESTIONS])[:1], atol=1e-5, rtol=1e-5)


def test_a_text_without_an_end_is_left_to_the_tower(device):
    assert clip_text(tiny.clip().to(device), [1, 5]) is None


def test_a_tower_that_is_not_clips_is_run_as_a_whole(model, device, processor):
    clip = tiny.clip().to(device)
    clip.text_model.encoder.layers[0].register_forward_hook(lambda module, args, output: output * 0.5)
    dual = DualEncoder(clip, processor.tokenizer, model)
    (ids,) = dual.chunks(QUESTIONS[1])
    with torch.no_grad():
        want = clip.get_text_features(input_ids=torch.tensor([ids], device=device)).pooler_output
        assert not torch.allclose(clip_text(clip, ids), want, rtol=1e-2)
    torch.testing.assert_close(dual.text([QUESTIONS[1]])[0], want, atol=1e-5, rtol=1e-5)


def test_a_tower_of_another_width_is_refused(model, device, processor):
    clip = tiny.clip()
    clip.config.vision_config.hidden_size = 99
    with pytest.raises(ValueError, match=r"CLIPModel has a vision tower of width 99, but the tower of Llava.* has 24"):
        attach(model, Script(keep=KEEP), processor=processor, dual_encoder=clip)


def test_a_model_that_is_no_dual_encoder_is_refused(model, processor):
    with pytest.raises(TypeError, match="pass a CLIPModel"):
        attach(model, Script(keep=KEEP), processor=processor, dual_encoder=(model, processor.tokenizer))


def test_by_path_pair_or_instance(model, clip, processor, single, tmp_path):
    clip.save_pretrained(tmp_path)
    processor.tokenizer.save_pretrained(tmp_path)
    kept = []
    for given in (clip, (clip, processor.tokenizer), str(tmp_path), type(clip).from_pretrained(tmp_path)):
        with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=given) as pruner:
            model.generate(**single, **GREEDY)
        kept.append(pruner.last.kept.tolist())
    assert kept == [kept[0]] * 4


def test_the_tokenizer_lies_beside_the_encoder(model, clip, single, tmp_path):
    """Without a processor, the question must be given and the tokenizer comes from where the encoder was loaded."""
    clip.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    given = type(clip).from_pretrained(tmp_path).to(model.device)
    with attach(model, Script(keep=KEEP), query="what color is the cat ?", dual_encoder=given) as pruner:
        model.generate(**single, **GREEDY)
    assert pruner.last.source == "clip"
    with pytest.raises(ValueError, match=r"dual_encoder=\(model, tokenizer\)"):
        attach(model, Script(keep=KEEP), query="is it red ?", dual_encoder=clip)


def test_without_text_there_is_no_relevance(model, clip, processor, single):
    pair = (clip, processor.tokenizer)
    with attach(model, Script(keep=KEEP), dual_encoder=pair), pytest.raises(ValueError, match="question's text"):
        model.generate(**single, **GREEDY)


def tiny_siglip(device):
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": len(tiny.WORDS), "max_position_embeddings": 16, "projection_size": 24}
    config = SiglipConfig(text_config=text, vision_config={**sizes, "image_size": tiny.SIZE, "patch_size": tiny.PATCH})
    return SiglipModel(config).to(device).eval()


def with_tower_of(encoder):
    """A LLaVA of the tower's type and width, as far as a dual encoder looks at it."""
    return SimpleNamespace(config=SimpleNamespace(vision_config=encoder.config.vision_config))


def test_siglip(device, processor, single):
    """No class token in the text, no projection of the image, and the plain sign."""
    siglip = tiny_siglip(device)
    model = tiny.llava(vision=siglip.config.vision_config, strategy="full").to(device)
    with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=siglip) as pruner:
        model.generate(**single, **GREEDY)
    assert (pruner.last.source, pruner.last.sign) == ("clip", 1)
    with torch.no_grad():
        states = model.model.vision_tower(single["pixel_values"], output_hidden_states=True).hidden_states[-2][0]
    words = processor.tokenizer("what color is the cat ?", add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[*words, tiny.END, *[0] * (15 - len(words))]], device=model.device)
    with torch.no_grad():
        image = siglip.vision_model.post_layernorm(states)
        text = siglip.get_text_features(ids).pooler_output
    expected = relevance_scores(image[None], text[None])[0]
    torch.testing.assert_close(pruner.last.relevance, expected, atol=1e-4, rtol=1e-4)


# --- the mean over words ---


@torch.no_grad()
def mean_of_words(encoder, dual, text):
    """(c,) the projected states of the words of a text, one chunk and one word at a time, in float64."""
    siglip = dual.sign == 1
    project = encoder.text_model.head if siglip else encoder.text_projection
    rows = []
    for chunk in dual.chunks(text):
        ids = chunk + [0] * (16 - len(chunk)) if siglip else chunk
        states = encoder.text_model(torch.tensor([ids], device=encoder.device)).last_hidden_state[0]
        for i, token in enumerate(chunk):
            if token not in (1, tiny.END):
                rows.append(project(states[i]).double())
    assert len(rows) == len(text.split())
    return sum(rows) / len(rows)


@pytest.mark.parametrize("positions", [77, 8])  # in one chunk, and in three
def test_the_mean_over_words(model, device, processor, positions):
    clip = tiny.clip(positions=positions).to(device)
    dual = DualEncoder(clip, processor.tokenizer, model, "mean")
    texts = ["what color is the big red cat in the image and is it like the other one", "cat"]
    found = dual.text(texts)
    for text, row in zip(texts, found):
        torch.testing.assert_close(row[0].double(), mean_of_words(clip, dual, text), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(dual.text([text])[0], row, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, DualEncoder(clip, processor.tokenizer, model).text(texts), atol=1e-2)


def test_the_mean_over_words_of_siglip(device, processor):
    siglip = tiny_siglip(device)
    dual = DualEncoder(siglip, processor.tokenizer, with_tower_of(siglip), "mean")
    texts = ["what color is the cat ?", "is it like the other one in the image and is it red or blue or yellow ?"]
    for text, row in zip(texts, dual.text(texts)):
        torch.testing.assert_close(row[0].double(), mean_of_words(siglip, dual, text), atol=1e-5, rtol=1e-5)


def test_a_method_may_ask_for_the_mean(model, clip, processor, single):
    method = Script(keep=KEEP, pooling="mean")
    with attach(model, method, processor=processor, dual_encoder=clip) as pruner:
        model.generate(**single, **GREEDY)
    image, _ = similarity(model, clip, processor, single["pixel_values"][0], "what color is the cat ?")
    dual = DualEncoder(clip, processor.tokenizer, model)
    text = mean_of_words(clip, dual, "what color is the cat ?").float()
    expected = relevance_scores(image[None], text[None, None], sign=-1)[0]
    torch.testing.assert_close(pruner.last.relevance, expected, atol=1e-4, rtol=1e-4)


# --- the text half, by id or "auto" ---


@pytest.fixture
def twin(model, clip, processor, tmp_path, monkeypatch):
    """The tiny CLIP in a folder, which stands for the published encoder of the tiny model's tower."""
    clip.save_pretrained(tmp_path)
    processor.tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(dual_encoder, "TEXT_TWINS", {("clip_vision_model", 24, 8, 48): str(tmp_path)})
    return tmp_path


def test_auto_is_the_encoder_of_the_models_tower(model, clip, processor, ragged, twin):
    found = []
    for given in (clip, "auto"):
        with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=given) as pruner:
            out = model.generate(**ragged, **GREEDY)
        assert {record.source for record in pruner.records} == {"clip"}
        found.append([out.tolist(), *[(one.kept.tolist(), one.relevance.tolist()) for one in pruner.records]])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_no_weights_of_the_tower_are_loaded(clip, device, tmp_path, kind, caplog):
    whole = {"clip": lambda: clip, "siglip": lambda: tiny_siglip(device)}[kind]()
    whole.save_pretrained(tmp_path)
    half = load_text_half(str(tmp_path), torch.float32)
    weights = {name: value for name, value in whole.state_dict().items() if "position_ids" not in name}
    left = {name for name in weights if not name.startswith("vision_model.")}
    left |= {f"vision_model.post_layernorm.{part}" for part in ("weight", "bias")}
    left |= {name for name in weights if "pre_layrnorm" in name}  # two vectors
    assert set(half.state_dict()) == left
    for name, value in half.state_dict().items():
        assert torch.equal(value, weights[name].cpu())
    states = torch.randn(1, 5, 24, device=device)
    pairs = [DualEncoder(one.to(device), tiny.tokenizer(), with_tower_of(whole)) for one in (whole, half)]
    assert torch.equal(*(dual.image(states) for dual in pairs))
    assert torch.equal(*(dual.text(QUESTIONS) for dual in pairs))
    assert "UNEXPECTED" not in caplog.text


def test_a_tower_without_a_known_twin_is_refused(model, processor):
    with pytest.raises(
        ValueError, match=r"dual_encoder='auto': no text twin is known of a clip_vision_model of width 24"
    ):
        attach(model, Script(keep=KEEP), processor=processor, dual_encoder="auto")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ("LlavaConfig", "openai/clip-vit-large-patch14-336"),
        ("LlavaNextConfig", "openai/clip-vit-large-patch14-336"),
        ("LlavaOnevisionConfig", "google/siglip-so400m-patch14-384"),
    ],
)
def test_published_models_and_their_twins(config, place):
    import transformers

    found = dual_encoder.find_text_twin(SimpleNamespace(config=getattr(transformers, config)()))
    assert found == place
