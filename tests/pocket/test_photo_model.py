"""The photo model's loss against the plain LLaVA, one question at a time; its parts; hints."""

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.photo_parts import LAYERS, tiny_network, tiny_words, write_llm, write_photographs, write_tower
from vlprune.pocket.photo_data import Example
from vlprune.pocket.photo_model import load_tower, shrink_llm
from vlprune.pocket.photo_questions import Question, existence_question
from vlprune.pocket.photo_scenes import GRID, SIZE
from vlprune.pocket.train_photo import answer_loss, answer_margins

QUESTIONS = [
    Question("caption", "describe the picture.", "a black dog in snow.", ""),
    existence_question("dog", True),
    Question("read word", "what word is written?", "tiger", "word", ((28, 28, 84, 56),)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_photographs(tmp_path_factory.mktemp("parts"))
    write_tower(folder / "tower")
    return folder


@pytest.fixture(scope="module")
def network(folder):
    return tiny_network(folder, folder / "tower")


def example(seed, questions=QUESTIONS, look=None):
    pixels = torch.randint(0, 256, (3, SIZE, SIZE), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    everything = torch.ones(len(questions), GRID * GRID, dtype=torch.bool)
    return Example(pixels, everything[0], everything if look is None else look, questions, torch.zeros(200))


def loss_of(network, examples):
    packed = network.packer(examples)
    return answer_loss(network, network.image_tokens(network.patch_features(packed["pixels"])), packed)


@torch.no_grad()
def test_all_questions_at_once_are_plain_llava_one_by_one(folder):
    network, processor = tiny_network(folder, folder / "tower", depth=2)
    examples = [example(0), example(1, QUESTIONS[1:])]
    together = loss_of(network, examples)
    network.fold_scale()  # the plain model knows no scale
    losses, margins, right = [], [], []
    for one in examples:
        picture = Image.fromarray(one.pixels.permute(1, 2, 0).numpy())
        for question in one.questions:
            message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}]
            text = processor.apply_chat_template(message, add_generation_prompt=True)
            inputs = processor(images=picture, text=text, return_tensors="pt")
            answer = processor.tokenizer(question.answer, add_special_tokens=False).input_ids
            answer = torch.tensor([[*answer, processor.tokenizer.eos_token_id]])
            ids = torch.cat([inputs["input_ids"], answer], dim=1)
            logits = network.model(input_ids=ids, pixel_values=inputs["pixel_values"]).logits[0]
            told = logits[-answer.shape[1] - 1 : -1]
            losses.append(F.cross_entropy(told, answer[0]))
            rest = told.scatter(1, answer.T, -torch.inf).amax(1)
            margins.append((told.gather(1, answer.T)[:, 0] - rest).min())
            right.append(bool((told.argmax(1) == answer[0]).all()))
    torch.testing.assert_close(together, torch.stack(losses).mean(), rtol=2e-4, atol=2e-4)
    tokens = network.image_tokens(network.patch_features(torch.stack([e.pixels for e in examples])))
    questions = [q for e in examples for q in e.questions]
    margin, correct = answer_margins(network, tokens[[0, 0, 0, 1, 1]], questions)
    for i, question in enumerate(questions):
        if question.kind != "existence":
            torch.testing.assert_close(margin[i], margins[i], rtol=2e-3, atol=2e-3)
            assert correct[i] == right[i]


@torch.no_grad()
def test_a_hint_hides_the_rest_of_the_picture_from_its_question_only(network):
    network, _ = network
    look = torch.zeros(1, GRID * GRID, dtype=torch.bool)
    look[0, 50:60] = True
    hinted, plain = network.packer([example(0, QUESTIONS[2:], look)]), network.packer([example(0, QUESTIONS[2:])])
    tokens = network.image_tokens(network.patch_features(hinted["pixels"]))
    changed = torch.where(look[0, :, None], tokens, torch.randn_like(tokens))
    same = answer_loss(network, tokens, hinted)  # the LLM has one layer: hidden tokens cannot speak through others
    torch.testing.assert_close(answer_loss(network, changed, hinted), same)
    assert (answer_loss(network, changed, plain) - answer_loss(network, tokens, plain)).abs() > 1e-4


@torch.no_grad()
def test_hidden_tokens_are_as_if_they_were_not_there(network):
    network, _ = network
    packed = network.packer([example(0)])
    tokens = network.image_tokens(network.patch_features(packed["pixels"]))
    seen = torch.rand(1, GRID * GRID, generator=torch.Generator().manual_seed(0)) < 0.3
    short = {**packed, "seen": seen[seen][None], "look": packed["look"][:, :, seen[0]]}
    torch.testing.assert_close(
        answer_loss(network, tokens, {**packed, "seen": seen}), answer_loss(network, tokens[:, seen[0]], short)
    )


def test_the_tower_s_places_are_stretched_to_336_pixels(folder):
    tower = load_tower(str(folder / "tower"))
    assert tower.config.image_size == SIZE
    assert tower.embeddings.position_embeddings.shape == (1, GRID * GRID + 1, 24)


def test_several_layers_of_the_tower_lie_side_by_side(network):
    network, _ = network
    pixels = example(0).pixels[None]
    features = network.patch_features(pixels)
    assert network.model.config.vision_feature_layer == LAYERS
    assert features.shape == (1, GRID * GRID, 24 * len(LAYERS))
    normal = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[
        :, None, None
    ]
    states = network.model.model.vision_tower(normal, output_hidden_states=True).hidden_states
    torch.testing.assert_close(features[..., 24:], states[3][:, 1:])


def test_a_shrunk_llm_keeps_layers_of_its_own_and_means_of_word_pieces(folder, tmp_path):
    words = tiny_words(folder)
    place = write_llm(tmp_path / "llm", words)
    llm, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    small = shrink_llm(llm, tokenizer, words, depth=3)
    for layer, number in zip(small.model.layers, (0, 2, 5), strict=True):
        for name, weight in layer.state_dict().items():
            assert torch.equal(weight, llm.model.layers[number].state_dict()[name])
    pieces = tokenizer(" dog", add_special_tokens=False).input_ids
    want = llm.get_input_embeddings().weight[pieces].mean(0)
    assert torch.equal(small.get_input_embeddings().weight[words.convert_tokens_to_ids("dog")], want)
    assert small.lm_head.weight is small.model.embed_tokens.weight
    assert small.config.num_hidden_layers == 3
    assert small.config.eos_token_id == words.eos_token_id
