"""Odd questions to the pocket model: an answer, or one sentence."""

import random
import warnings

import numpy as np
import torch

from fuzz_cases.expectations import Case, expect, one_sentence

PIECES = [
    *("is there a red star?", "what color is the circle?", "<image>", "<image><image>", "USER:", "ASSISTANT:", "</s>"),
    *(
        "\x00",
        "\x07\x1b[31m",
        "\u202e\u05e9\u05dc\u05d5\u05dd",
        "\U0001f600",
        "\u0645\u0631\u062d\u0628\u0627",
        "\n\n\t",
    ),
    *("a" * 300, "\u200b", "%s %d {0} {{x}}", "Answer yes or no.", "'; DROP", "<s>"),
]


def make_prompt_case() -> Case:
    from PIL import Image

    from vlprune import FastV, Script, ScriptPlus, attach, pocket
    from vlprune.pruning.feature_cache import FeatureCache

    torch.set_num_threads(1)
    model, processor, clip = pocket.load()
    seen = FeatureCache(2**24)  # the tower runs once
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (192, 192, 3), dtype=np.uint8))

    def case(draw: random.Random) -> str:
        kind = draw.choice(["one", "one", "several", "several", "several", "empty", "random", "random", "long"])
        if kind == "long":
            question = " ".join(draw.choice(["red", "star", "the"]) for _ in range(draw.choice([300] * 19 + [10_000])))
        elif kind == "random":
            question = "".join(chr(draw.choice([*range(1, 256), 0x5D0, 0x4E00, 0x1F600])) for _ in range(40))
        elif kind == "empty":
            question = draw.choice(["", " ", "\n", "\u200b", "<image>", "Please answer yes or no."])
        else:
            question = " ".join(draw.choices(PIECES, k=1 if kind == "one" else draw.randint(2, 6)))
        method = draw.choice([Script(keep=16), ScriptPlus(keep=16), FastV(keep=64)])
        encoder = clip if draw.random() < 0.7 and method.name != "fastv" else None
        options = {"processor": processor, "dual_encoder": encoder, "feature_cache": seen}
        with warnings.catch_warnings(), attach(model, method, **options) as pruner:
            warnings.simplefilter("ignore")
            try:
                answers = pruner.ask_many(image, [question], max_new_tokens=1)
            except ValueError as error:
                one_sentence(error)
                return f"{kind}: refused"
            expect(len(answers) == 1 and isinstance(answers[0], str), f"{answers}")
            expect(pruner.last.before == 576, f"{pruner.last.before} tokens")
        return kind

    return case
