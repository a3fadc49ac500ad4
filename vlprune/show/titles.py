"""Titles of pictures: broken into lines, shortened, and drawn with fonts that have their characters."""

from __future__ import annotations

import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vlprune.show.panels import escape_formulas

TITLE_LINES = 3  # of a title at most
CHARACTER_INCHES = 0.0105  # width of a character of bold text, per point of its size
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


def fit_title(text: str, inches: float, size: float) -> str:
    """A title in lines that are so many inches wide at a font's size, three at most; a longer one is shortened.

    Dollar signs are escaped: matplotlib would read what is between two as a formula.

    >>> fit_title("is it $5 or $6?", 9.0, 11)
    'is it \\\\$5 or \\\\$6?'
    >>> fit_title("why " * 80, 3.0, 11).splitlines()
    ['why why why why why why', 'why why why why why why', 'why why why why why ...']
    """
    wide = any(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    width = max(8, int(inches / (CHARACTER_INCHES * size * (1 + wide))))
    lines = textwrap.wrap(text, width, max_lines=TITLE_LINES, placeholder=" ...")
    return escape_formulas("\n".join(lines))


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
