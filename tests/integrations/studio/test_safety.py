"""The page is for one user on one machine: hostile files and words, other tabs, other machines, other files."""

import contextlib
import io
import socket
import struct
import urllib.error
import urllib.request
import zlib

import pytest
from PIL import Image

from tests.integrations.studio.actions import ask_for, choose_method, error_text, kept_tokens, upload, wait_for_count
from vlprune.cli.app import main


def sentence_of(*arguments):
    """What the command line says of the same."""
    held = io.StringIO()
    with contextlib.redirect_stderr(held), pytest.raises(SystemExit):
        main(list(map(str, arguments)))
    return held.getvalue().splitlines()[-1].removeprefix("vlprune: ")


def bomb():
    """A PNG that claims 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


HOSTILE = {
    "text.png": b"not an image",
    "bomb.png": bomb(),
    "page.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.hacked = 1</script></svg>",
    "cut.jpg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_upload_shows_the_sentence_of_the_command_line(tab, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    upload(tab, path)
    said = sentence_of("ask", path, "what color is the star?").replace(str(path), name)
    assert error_text(tab) == said
    assert tab.locator("#tokens svg").count() == 0  # the picture of the image before it is gone
    assert tab.evaluate("window.hacked") is None


def test_a_file_that_is_too_large_is_not_taken(tab, tmp_path):
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    tab.get_by_label("Remove Image").first.click()
    tab.locator("input[type=file][accept*=image]").first.set_input_files(path)
    tab.wait_for_selector(".toast-message-text")
    assert "size" in error_text(tab).lower()


def test_words_are_words(tab):
    hostile = "<img src=x onerror='window.hacked=1'> ${window.hacked=2} {{constructor}}"
    wait_for_count(tab, 64)
    ask_for(tab, hostile)
    tab.get_by_role("button", name="Answer with all tokens").click()
    tab.wait_for_selector("#costs table")
    choose_method(tab, hostile)
    assert "no such method" in error_text(tab)
    tab.locator("#sentence").filter(has_text=hostile.split(":")[0][:20]).wait_for()
    tab.wait_for_timeout(500)
    assert tab.evaluate("window.hacked") is None


def test_an_impossible_budget(tab, scene):
    wait_for_count(tab, 64)
    choose_method(tab, "script:keep=1000")
    said = sentence_of("ask", scene[0], "what color is the star?", "--method", "script:keep=1000")
    assert error_text(tab) == said


def test_two_tabs_do_not_see_each_other(open_tab, scene, tmp_path):
    first, second = open_tab(), open_tab()
    for tab in (first, second):
        wait_for_count(tab, 64)
    before = second.locator("#tokens image").get_attribute("href")
    kept = kept_tokens(second)
    upload(first, scene[0])
    first.wait_for_function(
        "old => { const now = document.querySelector('#tokens image'); return now && now.getAttribute('href') != old }",
        arg=before,
    )
    assert second.locator("#tokens image").get_attribute("href") == before
    second.get_by_label("relevance", exact=True).check()
    second.wait_for_selector("#tokens figure.map")
    assert second.locator("#tokens image").get_attribute("href") == before
    assert kept_tokens(second) == kept
    for tab in (first, second):  # both at once wait for each other
        tab.get_by_role("button", name="Answer with all tokens").click()
    for tab in (first, second):
        tab.wait_for_selector("#costs table")
        assert tab.locator("#answers .reason").count() == 0
    third = open_tab()
    assert third.locator("#tokens image").get_attribute("href") == before


def status_of(url):
    try:
        return urllib.request.urlopen(url, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


def test_no_file_beyond_uploads_is_served(server, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for path in ("/etc/passwd", secret, "pyproject.toml", f"{server.folder}/../{secret}"):
        assert status_of(f"{server.url}gradio_api/file={path}") in (403, 404)


def test_only_this_machine_can_reach_it(server):
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        own = probe.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(OSError, match=r"refused|unreachable"):
        socket.create_connection((own, port), timeout=3)


def test_uploads_are_gone_at_the_end(tmp_path):
    from vlprune.cli.options import parse_method
    from vlprune.evaluation.load_model import load_model
    from vlprune.studio.serve import Server

    with Server(load_model("pocket", None, "cpu"), parse_method) as other:
        assert other.folder.is_dir()
        assert other.folder.stat().st_mode & 0o077 == 0
    assert not other.folder.exists()


def test_an_image_of_another_mode(tab, tmp_path):
    path = tmp_path / "grey.png"
    Image.new("LA", (50, 80), (9, 200)).save(path)
    upload(tab, path)
    wait_for_count(tab, 64)
