"""A model with a cheaper tower: nothing else changes, with a pruner and without, and nothing is left behind."""

import copy
import pickle
import threading

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.families import others
from tests.support.families.llava import LlavaOnevision, VideoLlava
from tests.support.photo_parts import tiny_network, write_photographs, write_tower
from tests.support.tape import capture_on_tape
from tests.support.versions import needs_compile
from tests.vision.conftest import TOWERS, pixels
from vlprune import FastV, Script, UnsupportedModel, VisionZip, attach, pocket
from vlprune.cuda_graphs import GraphedModel
from vlprune.vision import CheaperTower


def own_attributes(model):
    return {name: set(module.__dict__) for name, module in model.named_modules()}


@pytest.fixture(scope="module")
def processor():
    return tiny.processor()


@pytest.fixture
def llava(device):
    return tiny.llava().to(device)


@pytest.fixture
def inputs(processor, device):
    return tiny.inputs(processor, ["what color is the cat ?", "how many dogs ?"], [1, 1], device)


def generate(model, inputs):
    return model.generate(**inputs, max_new_tokens=6, do_sample=False)


def test_what_is_off_changes_no_bit(model, tower, device):
    images = pixels(3).to(device)[[0, 1, 1, 2]]
    plain = tower(images, output_hidden_states=True)
    for off in ({}, {"merge": 0.0, "repeats": None}, {"merge": 0, "repeats": False}):
        with CheaperTower(model, **off):
            found = tower(images, output_hidden_states=True)
        assert torch.equal(found.last_hidden_state, plain.last_hidden_state)
        assert all(map(torch.equal, found.hidden_states, plain.hidden_states))


def test_closing_leaves_nothing(model, tower, device):
    images = pixels(2).to(device)
    plain = tower(images, output_hidden_states=True)
    before = own_attributes(model)
    cheaper = CheaperTower(model, merge=0.5, repeats=True)
    assert not torch.equal(tower(images).last_hidden_state, plain.last_hidden_state)
    cheaper.close()
    cheaper.close()
    assert own_attributes(model) == before
    assert torch.equal(tower(images).last_hidden_state, plain.last_hidden_state)


def test_a_forward_of_somebody_else_is_kept(llava, device):
    tower, calls = llava.model.vision_tower, []
    original = tower.forward
    tower.forward = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    mine = tower.forward
    with CheaperTower(llava, merge=0.5, repeats=True):
        tower(pixels(1).to(device))
    assert calls == [1]
    assert tower.forward is mine


def test_with_and_without_a_pruner(llava, processor, inputs):
    """The pruned answer is that of features that the cheaper tower made, whoever comes first."""
    plain, kept = generate(llava, inputs), Script(keep=12)
    with CheaperTower(llava, merge=0.75):
        merged = generate(llava, inputs)
        with attach(llava, Script(keep=1.0), processor=processor):
            assert torch.equal(generate(llava, inputs), merged)
        with attach(llava, kept, processor=processor) as pruner:
            inside = generate(llava, inputs), pruner.last.kept
    with attach(llava, kept, processor=processor) as pruner, CheaperTower(llava, merge=0.75):
        assert torch.equal(generate(llava, inputs), inside[0])
        assert torch.equal(pruner.last.kept, inside[1])
    assert torch.equal(generate(llava, inputs), plain)


def test_cached_features_are_those_of_the_tower_as_it_is(llava, processor, inputs):
    counts = []
    llava.model.vision_tower.embeddings.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))

    def features(pruner):
        pruner.select(inputs)
        return {value.features.sum().item() for value in pruner.feature_cache._kept.values()}

    with attach(llava, Script(keep=12), processor=processor) as pruner:
        plain = features(pruner)
        with CheaperTower(llava, merge=0.75):
            both = features(pruner)
            assert features(pruner) == both
        with CheaperTower(llava, merge=0.5):
            three = features(pruner)
        assert features(pruner) == three
    assert [len(plain), len(both), len(three)] == [2, 4, 6]
    assert counts == [2, 2, 2]


def test_an_image_that_two_rows_show_is_encoded_once(llava, processor, device):
    inputs = tiny.inputs(processor, ["what color is the cat ?", "how many dogs ?"], [1, 1], device)
    inputs["pixel_values"][1] = inputs["pixel_values"][0]
    plain, counts = generate(llava, inputs), []
    llava.model.vision_tower.embeddings.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    with CheaperTower(llava, repeats=True):
        assert torch.equal(generate(llava, inputs), plain)
    assert counts == [1]


def test_frames_of_a_video(device):
    case = LlavaOnevision()
    model = case.model().to(device)
    video = case.video(1)
    video.pixels[2:] = video.pixels[1]
    inputs = {name: value.to(device) for name, value in case.batch([case.sample(2, video, 3)]).items()}
    plain, counts = generate(model, inputs), []
    with attach(model, Script(keep=6)) as pruner:
        wanted = generate(model, inputs), pruner.last.kept
    model.model.vision_tower.embeddings.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    with CheaperTower(model, repeats=True):
        assert torch.equal(generate(model, inputs), plain)
        with attach(model, Script(keep=6)) as pruner:
            assert torch.equal(generate(model, inputs), wanted[0])
            assert torch.equal(pruner.last.kept, wanted[1])
    assert counts == [2, 2]
    with CheaperTower(model, merge=0.5, repeats=True), attach(model, Script(keep=6)) as pruner:
        generate(model, inputs)
        assert len(pruner.last.kept) == 6


def test_both_towers_of_video_llava(device):
    case = VideoLlava()
    model = case.model().to(device)
    inputs = {name: value.to(device) for name, value in case.batch([case.sample(2, case.video(1), 3)]).items()}
    plain = model(**inputs).logits
    with CheaperTower(model, merge=0.5), attach(model, Script(keep=1.0)):
        merged = model(**inputs).logits
    assert merged.shape == plain.shape
    assert not torch.equal(merged, plain)


def test_the_photo_model(tmp_path, device):
    """DINOv2, whose hidden states of several layers are read."""
    network, processor = tiny_network(write_photographs(tmp_path / "data"), write_tower(tmp_path / "tower"))
    model = network.model.to(device)
    image = torch.randint(0, 256, (3, 336, 336), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    text = "user: <image> is there a dog in the picture? assistant:"
    inputs = dict(processor(images=image, text=text, return_tensors="pt").to(device))
    with attach(model, Script(keep=64), processor=processor, dual_encoder=network.clip.to(device)) as pruner:
        plain = generate(model, inputs)
        with CheaperTower(model, merge=0.5, repeats=True):
            merged = generate(model, inputs)
        assert len(pruner.last.kept) == 64
        assert torch.equal(generate(model, inputs), plain)
    assert len(merged) == len(plain)


def test_the_pocket_model_answers():
    model, processor, clip = pocket.load()
    (scene,) = pocket.scenes(3, 1)
    asked, pictures = pocket.questions(scene), pocket.images([scene])
    rows = [f"USER: <image> {question.text} ASSISTANT:" for question in asked]
    inputs = processor(images=pictures * len(rows), text=rows, padding=True, return_tensors="pt")

    def answers():
        out = model.generate(**inputs, max_new_tokens=1, do_sample=False)
        return [text.strip() for text in processor.batch_decode(out[:, -1:], skip_special_tokens=True)]

    plain = answers()
    with CheaperTower(model, repeats=True):
        assert answers() == plain
    with (
        CheaperTower(model, merge=0.1, repeats=True),
        attach(model, Script(keep=64), processor=processor, dual_encoder=clip),
    ):
        pruned = answers()
    right = [[said == question.answer for said, question in zip(words, asked)] for words in (plain, pruned)]
    assert sum(right[0]) >= len(asked) - 1
    assert sum(right[1]) >= len(asked) - 2


def test_threads_share_a_tower(llava, device):
    tower, images = llava.model.vision_tower, [pixels(1, seed).to(device) for seed in range(4)]
    with CheaperTower(llava, merge=0.5):
        wanted = [tower(image).last_hidden_state for image in images]
        found = [[] for _ in images]

        def run(number):
            with torch.no_grad():
                found[number] = [tower(images[number]).last_hidden_state for _ in range(20)]

        threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(one, states) for some, states in zip(found, wanted) for one in some)


@pytest.mark.filterwarnings("ignore")  # torch's, of what it cannot trace
@needs_compile
def test_a_compiled_tower(llava, device):
    tower, image = llava.model.vision_tower, pixels(1).to(device)
    plain = tower(image).last_hidden_state
    with CheaperTower(llava, merge=0.5):
        merged = tower(image).last_hidden_state
    assert not torch.allclose(merged, plain)
    compiled = torch.compile(tower, backend="eager")
    torch.testing.assert_close(compiled(image).last_hidden_state, plain)
    with CheaperTower(llava, merge=0.5):
        torch.testing.assert_close(compiled(image).last_hidden_state, merged)
    torch.testing.assert_close(compiled(image).last_hidden_state, plain)


# --- what is refused ---


@pytest.mark.parametrize("merge", [1, 1.0, -0.1, True, "0.5", None, float("nan")])
def test_wrong_merge(llava, merge):
    with pytest.raises(ValueError, match=r"^merge=.*: a share of the patches, from 0 to below 1\.$"):
        CheaperTower(llava, merge=merge)


@pytest.mark.parametrize("repeats", [0.0, 1.5, -1.0, 1, "yes", float("nan")])
def test_wrong_repeats(llava, repeats):
    with pytest.raises(ValueError, match=r"^repeats=.*: choose from None, True for equal images, and a cosine"):
        CheaperTower(llava, repeats=repeats)


@pytest.mark.parametrize("case", [others.Idefics3(), others.InternVL()], ids=lambda case: case.name)
@pytest.mark.parametrize("options", [{}, {"merge": 0.5}, {"repeats": True}])
def test_other_towers(case, options):
    model = case.model()
    with pytest.raises(UnsupportedModel, match=f"^model is a {type(model).__name__} with a .*Vision.*: a CheaperTower"):
        CheaperTower(model, **options)


def test_models_without_a_tower(llava):
    with pytest.raises(UnsupportedModel, match="with no vision tower"):
        CheaperTower(llava.model.language_model, merge=0.5)
    with pytest.raises(UnsupportedModel, match="model is a Linear: pass a transformers model"):
        CheaperTower(torch.nn.Linear(2, 2), merge=0.5)


def test_attention_is_not_given(llava, processor, inputs, device):
    with CheaperTower(llava, merge=0.5):
        with pytest.raises(ValueError, match="output_attentions=True"):
            llava.model.vision_tower(pixels(1).to(device), output_attentions=True)
        with attach(llava, FastV(keep=8), processor=processor):  # which needs that of the LLM
            generate(llava, inputs)
    for options in ({"merge": 0.5}, {"repeats": True}):
        with (
            CheaperTower(llava, **options),
            attach(llava, VisionZip(keep=12)),
            pytest.raises(ValueError, match="the method needs the vision tower's attention"),
        ):
            generate(llava, inputs)


def test_more_than_a_tower_can(llava, device):
    with CheaperTower(llava, merge=0.95), pytest.raises(ValueError, match=r"merge=0\.95: each of the tower's 3 layers"):
        llava.model.vision_tower(pixels(1).to(device))


def test_tensors_beside_the_pixels(device):
    model = tiny.llava(vision=TOWERS["dinov2"][0]).to(device)
    mask = torch.zeros(1, 36, dtype=torch.bool, device=device)
    with CheaperTower(model, merge=0.5), pytest.raises(ValueError, match="bool_masked_pos: a CheaperTower takes"):
        model.model.vision_tower(pixels(1).to(device), bool_masked_pos=mask)


def test_once_at_a_time_and_no_copies(llava):
    with CheaperTower(llava, repeats=True):
        with pytest.raises(RuntimeError, match="already has a CheaperTower"):
            CheaperTower(llava, merge=0.5)
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(llava)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(llava)
    copy.deepcopy(llava)


def test_graphs(llava, processor):
    with CheaperTower(llava, merge=0.5):
        with pytest.raises(RuntimeError, match="model has a CheaperTower"):
            GraphedModel(llava)
        with pytest.raises(RuntimeError, match="model has a CheaperTower"):
            attach(llava, Script(keep=8), processor=processor, cuda_graphs=True)
    with GraphedModel(llava, capture=capture_on_tape):
        pass
