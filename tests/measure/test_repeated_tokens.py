"""The count of an image's tokens that repeat."""

import sys

from PIL import Image

from tests.support.scripts import load_script


def test_a_page_with_a_stripe(monkeypatch, tmp_path, capsys):
    page = Image.new("RGB", (28 * 4, 28 * 3), "white")
    page.paste("red", (28, 0, 28 * 4, 28))
    page.save(tmp_path / "page.png")
    monkeypatch.setattr(sys, "argv", ["repeated_tokens.py", str(tmp_path / "page.png")])
    load_script("benchmarks/repeated_tokens.py").main()
    assert capsys.readouterr().out.splitlines()[-1] == "| page.png | 3 x 4 | 2 | 16.7 |"
