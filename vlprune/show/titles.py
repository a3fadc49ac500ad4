"""Titles of pictures: broken into lines, shortened, and drawn with fonts that have their characters."""

from __future__ import annotations

import re
import textwrap
import unicodedata
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

TITLE_LINES = 3  # of a title, but for one with a long answer
ARROW = " → "  # between a question and its answer
CHARACTER_INCHES = 0.0105  # width of a character of bold text, per point of its size
PLAIN_CHARACTER_INCHES = 0.0081  # of text that is not bold
#: Fonts that are tried for a character in turn, those of them that the machine has.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans Arabic",
    "Noto Naskh Arabic",
    "Noto Sans Devanagari",
    "Noto Sans Hebrew",
    "Noto Emoji",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Segoe UI Emoji",
    "Segoe UI",
)


def escape_formulas(text: str) -> str:
    """The text with its dollar signs escaped: matplotlib would read what is between two as a formula."""
    return text.replace("$", r"\$")


def picture_title(question: str, answer: str | None, budget: str) -> str:
    """The title of a picture: what was asked, what was answered, and how many tokens that took.

    >>> picture_title("what is it?", "a star", "script, 64 of 576 tokens")
    'what is it? → a star (script, 64 of 576 tokens)'
    >>> picture_title("what is it?", None, "64 of 576 tokens")
    'what is it? (64 of 576 tokens)'
    """
    said = "" if answer is None else f"{ARROW}{answer or '(nothing)'}"
    return f"{question}{said} ({budget})"


def fit_title(text: str, inches: float, size: float) -> str:
    """A title in lines that are so many inches wide at a font's size, three if that can be.

    Of a longer one the middle is left out, but never an answer, which is what follows an arrow. Dollar signs are
    escaped: matplotlib would read what is between two as a formula.

    >>> fit_title("is it $5 or $6?", 9.0, 11)
    'is it \\\\$5 or \\\\$6?'
    >>> fit_title("what is it? " * 80 + "→ a green star", 3.0, 11).splitlines()
    ['what is it? what is it?', 'what ... what is it? what', 'is it? → a green star']
    """
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    width = max(8, int(inches / (CHARACTER_INCHES * size * (1 + wide))))
    return escape_formulas(textwrap.fill(_without_middle(text, width), width))


def fit_panel_title(text: str, inches: float, size: float) -> str:
    """The title of a panel in lines that are so many inches wide at a font's size; its own line breaks stay.

    >>> fit_panel_title("script\\nrelevance to the question", 1.5, 9)
    'script\\nrelevance to the\\nquestion'
    """
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    width = max(6, int(inches / (PLAIN_CHARACTER_INCHES * size * (1 + wide))))
    return escape_formulas("\n".join(textwrap.fill(line, width) for line in text.splitlines()))


def _without_middle(text: str, width: int) -> str:
    """A text without as much of the middle of its question as is too long for three lines of that width.

    An answer that needs these lines for itself leaves one for the question.
    """
    question, arrow, answer = text.rpartition(ARROW) if ARROW in text else (text, "", "")
    most = max(TITLE_LINES, 1 + len(textwrap.wrap(arrow + answer, width)))
    if len(textwrap.wrap(text, width)) <= most:
        return text
    units, glue = question.split(), " "
    if max(map(len, units), default=0) > width:  # not written in words
        units, glue = list(question), ""

    def shortened(kept: int) -> str:
        ends = glue.join(units[: kept - kept // 2]), glue.join(units[len(units) - kept // 2 :])
        return f"{ends[0]} ... {ends[1]}{arrow}{answer}"

    counts = range(2, len(units))
    too_long = bisect_left(counts, True, key=lambda kept: len(textwrap.wrap(shortened(kept), width)) > most)
    return shortened(counts[max(0, too_long - 1)] if counts else len(units))


@contextmanager
def fallback_fonts() -> Iterator[None]:
    """Draw and save within the `with` by all `FONTS`; one warning names the characters that none of them has."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    known = set(fontManager.get_font_names())
    missing: dict[str, None] = {}
    with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context():
        warnings.simplefilter("always")
        matplotlib.rcParams["font.family"] = [name for name in FONTS if name in known]
        yield
    for warning in caught:
        glyph = re.match(r"Glyph (\d+) ", str(warning.message))
        if glyph:
            missing[chr(int(glyph[1]))] = None
        elif not re.match(r"Matplotlib currently does not support", str(warning.message)):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        letters = " ".join(missing)
        warnings.warn(f"vlprune: no font of this machine can draw {letters} in the picture.", stacklevel=4)
