"""What the photo model is made of, tiny: drawn "photographs" with captions and splits, a DINOv2 and a Llama."""

from random import Random

import torch
from PIL import Image, ImageDraw
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.support.tiny_llava import loud
from vlprune.pocket.photo_data import read_splits
from vlprune.pocket.photo_model import Network, Packer, build_dual_encoder, build_model, word_list
from vlprune.pocket.photo_scenes import PATCH, SIZE
from vlprune.pocket.processor import build_processor

LAYERS = [1, 3]
_CAPTIONS = [
    [
        "A black dog runs in snow .",
        "A black dog is running .",
        "An animal outside .",
        "A dog in white snow .",
        "A dog .",
    ],
    ["Two men sit on a bench .", "Two men are sitting .", "Men with a red ball .", "People on a bench .", "Two men ."],
    [
        "A girl in a blue dress jumps .",
        "A girl is jumping .",
        "A child in a blue dress .",
        "A girl .",
        "A child jumps .",
    ],
    ["A boat on the water .", "A white boat .", "A boat on a lake .", "A white boat on water .", "A boat ."],
]


def write_photographs(folder):
    """Twelve drawn pictures in `photos`, their captions and Flickr8k's lists of splits in `text`."""
    (folder / "photos").mkdir(parents=True)
    (folder / "text").mkdir()
    names = [f"{i}.jpg" for i in range(12)]
    for i, name in enumerate(names):
        rng = Random(i)
        picture = Image.new("RGB", (90, 70), tuple(rng.randrange(256) for _ in range(3)))
        ImageDraw.Draw(picture).ellipse((20, 10, 60, 50), fill=tuple(rng.randrange(256) for _ in range(3)))
        picture.save(folder / "photos" / name)
    lines = [f"{n}#{k}\t{text}" for i, n in enumerate(names) for k, text in enumerate(_CAPTIONS[i % 4])]
    (folder / "text" / "captions.txt").write_text("\n".join(lines) + "\n")
    for split, part in (("train", names[:8]), ("dev", names[4:10]), ("test", names[10:])):
        (folder / "text" / f"Flickr_8k.{split}Images.txt").write_text("\n".join(part) + "\n")
    return folder


def write_tower(folder, registers=0):
    """A DINOv2 with random weights for pictures of 56 pixels, so that its places must be stretched to 336."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_ratio": 2}
    sizes |= {"image_size": 56, "patch_size": PATCH}
    if registers:
        tower = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes, num_register_tokens=registers))
    else:
        tower = Dinov2Model(Dinov2Config(**sizes))
    loud(tower, seed=1, scale=0.1).save_pretrained(folder)
    return folder


def write_llm(folder, words):
    """A Llama of six layers with random weights, and a tokenizer beside it."""
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=2
    )
    loud(LlamaForCausalLM(config), seed=2, scale=0.1).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tiny_words(folder):
    """The word tokenizer of the captions that `write_photographs` wrote."""
    facts = read_splits(folder / "text" / "captions.txt")["train"]
    return build_processor(word_list(facts.values()), size=SIZE, patch=PATCH).tokenizer


def tiny_network(folder, tower, depth=1):
    """(network, processor) with a new LLM, its features standardised by noise."""
    torch.manual_seed(0)
    words = tiny_words(folder)
    model, processor = build_model(str(tower), LAYERS, "new", words, width=64, depth=depth)
    network = Network(model, build_dual_encoder(model.model.vision_tower, words), Packer(processor, words)).eval()
    network.fit_scale(network.patch_features(torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)))
    return network, processor
