"""What the small models do not know, said in a sentence: words, images and questions from outside their worlds."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from vlprune.pocket.photo_folder import find_folder
from vlprune.pocket.world import SIZE, vocabulary

if TYPE_CHECKING:
    from PIL import Image

REAL_MODEL = "llava-hf/llava-1.5-7b-hf"
NAMED_WORDS = 4  # so many unknown words are named
#: What `measure_image` finds in drawn scenes, with a margin. Behind each range stands what was measured on 2,000 scenes
#: of the test split, as they are, as JPEG of quality 75 and 50, and at double and half the size: none is outside. All
#: of 783 other images are: photographs, icons, charts, screenshots, solid colours, noise, gradients, and a red star
#: drawn on white, grey, black and blue.
SCENE_RANGES = {
    "backdrop": (0.65, 0.99),  # 0.711 to 0.978
    "tint": (0.0, 0.15),  # 0.000 to 0.133
    "darkest": (0.1, 1.0),  # 0.136 to 0.650
    "lightest": (0.0, 0.88),  # 0.294 to 0.837
    "grain": (0.002, 0.03),  # 0.0039 to 0.0196
    "vivid": (0.005, 0.2),  # 0.0074 to 0.139
}


#: How questions begin that the photo model was taught.
PHOTO_QUESTIONS = re.compile(
    r"(is|are) there |what colou?r (is|are) |how many |what (is|are) .* doing|what (word|number) is written"
    r"|what is written on the \w+ card"
)


def explain_photo_limits(question: str, words: Container[str], answer: str) -> str | None:
    """One sentence on why the photo model's answer means little, or None; `words` are those that it knows.

    >>> known = "is there a dog in the picture what does it weigh".split()
    >>> explain_photo_limits("Is there a dog in the picture?", known, "yes")
    >>> explain_photo_limits("What does the dog weigh?", known, "red").partition("; ")[2].partition(":")[0]
    'it was not taught such a question'
    """
    reasons = []
    if unknown := unknown_words(question, words):
        reasons.append(f"it does not know {_name_words(unknown)}")
    elif not PHOTO_QUESTIONS.match(question.strip().lower()):
        reasons.append("it was not taught such a question")
    if not answer:
        reasons.append("it gave no answer")
    if not reasons:
        return None
    return (
        "the photo model can tell whether a thing is there and what is written on a small card, in the words of "
        f'Flickr8k\'s captions; {" and ".join(reasons)}: try "is there a dog in the picture?", '
        f"or --model {REAL_MODEL}."
    )


def explain_limits(question: str, image: Image.Image, answer: str) -> str | None:
    """One sentence on why the pocket model's answer means little, or None where it was asked about its own world.

    >>> from vlprune.pocket import images, scenes
    >>> (drawn,) = images(scenes("test", 1))
    >>> explain_limits("what color is the star?", drawn, "red")
    >>> explain_limits("what is it?", drawn, "").partition(";")[2].partition(":")[0]
    " it does not know the word 'it', and it gave no answer"
    """
    reasons = []
    if not resembles_scene(image):
        reasons.append("this image is unlike them")
    if unknown := unknown_words(question):
        reasons.append(f"it does not know {_name_words(unknown)}")
    if not answer:
        reasons.append("it gave no answer")
    if not reasons:
        return None
    because = reasons[0] if len(reasons) == 1 else f"{', '.join(reasons[:-1])}, and {reasons[-1]}"
    return (
        f"the pocket model knows only drawn scenes of coloured shapes with digits; {because}: try `vlprune scene`, "
        f"or for photographs --model {'' if find_folder() is None else 'photo or '}{REAL_MODEL}."
    )


def unknown_words(question: str, known: Container[str] | None = None) -> list[str]:
    """The words of a question that are not `known`, or else not to the pocket model, each once; marks go free.

    >>> unknown_words("What colour is the man's RED star, the man's star?")
    ['colour', "man's"]
    """
    known = set(vocabulary()) if known is None else known
    return [word for word in dict.fromkeys(re.split(r"[\s?.,!]+", question.lower())) if word and word not in known]


def resembles_scene(image: Image.Image) -> bool:
    """Whether an image has the colours and the grain of a drawn scene, as the model would see it.

    >>> from PIL import Image
    >>> resembles_scene(Image.new("RGB", (300, 200), "white"))
    False
    """
    measured = measure_image(image)
    return all(low <= measured[name] <= high for name, (low, high) in SCENE_RANGES.items())


def measure_image(image: Image.Image) -> dict[str, float]:
    """Six numbers that tell drawn scenes from other images: a grey backdrop with grain, and some vivid things on it.

    `backdrop` is the share of pixels that have the image's commonest tint, `tint` how far that is from grey;
    `darkest`, `lightest` and `grain` are the backdrop's brightness, at 5 and 95 %, and its median step from pixel to
    pixel; `vivid` is the share of pixels of a strong colour. Colours are from 0 to 1.
    """
    import numpy as np

    colours = np.asarray(_as_seen(image), dtype=np.float32) / 255
    tints = colours[..., :2] - colours[..., 1:]  # red less green, green less blue
    tint = np.median(tints.reshape(-1, 2), axis=0)
    backdrop = np.abs(tints - tint).max(axis=-1) < 0.05
    brightness = colours.mean(axis=-1)
    steps = np.abs(np.diff(brightness, axis=1))[backdrop[:, 1:] & backdrop[:, :-1]]
    darkest, lightest = np.quantile(brightness[backdrop], (0.05, 0.95)) if backdrop.any() else (0.0, 1.0)
    return {
        "backdrop": float(backdrop.mean()),
        "tint": float(np.abs(tint).max()),
        "darkest": float(darkest),
        "lightest": float(lightest),
        "grain": float(np.median(steps)) if len(steps) else 0.0,
        "vivid": float((np.ptp(colours, axis=-1) > 0.3).mean()),
    }


def _as_seen(image: Image.Image) -> Image.Image:
    """The middle square of an image at the model's size, as its processor cuts it."""
    from PIL import Image

    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=box)


def _name_words(words: Sequence[str]) -> str:
    """Words in quotes, the first of them if there are many.

    >>> _name_words(["man", "holding"]), _name_words(list("abcdef"))
    ("the words 'man', 'holding'", "the words 'a', 'b', 'c', 'd' and 2 more")
    """
    named = ", ".join(map(repr, words[:NAMED_WORDS]))
    more = f" and {len(words) - NAMED_WORDS} more" if len(words) > NAMED_WORDS else ""
    return f"the word{'s' * (len(words) > 1)} {named}{more}"
