"""Where an image comes from: a video's frames, the clipboard, a webcam; and the program itself, started as users do."""

import base64

import pytest

from tests.integrations.studio.actions import ask_for, keep, kept_tokens, wait_for_count
from tests.integrations.studio.checks import faults_at_rest
from tests.integrations.studio.program import opened_studio
from tests.integrations.studio.test_looks import SIZES
from vlprune import Script, attach, pocket


@pytest.fixture
def video_studio(tmp_path):
    """The address of `vlprune studio --model FOLDER` with a tiny LLaVA-OneVision, which takes videos."""
    folder = str(tmp_path / "onevision")
    command = ["studio", "--model", folder, "--device", "cpu", "--no-browser"]
    with opened_studio("-m", "tests.support.onevision", folder, *command) as address:
        yield address


def test_a_video_shows_its_frames(browser, video_studio, film, screenshots):
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(60_000)
    tab.goto(video_studio)
    tab.wait_for_selector("#sentence")
    wait_for_count(tab, 64)  # of the example
    tab.locator("input[type=file][accept*='.mp4']").set_input_files(film)
    tab.wait_for_function("() => document.querySelectorAll('#tokens svg > text').length == 16")
    labels = tab.locator("#tokens svg > text").all_text_contents()
    assert labels == [str(i + 1) for i in range(16)]
    keep(tab, 48)
    tab.wait_for_function("() => document.querySelectorAll('#tokens rect.kept').length == 48")
    tab.locator("#tokens rect").last.hover()
    assert "frame 16, row" in tab.locator("#tokens figcaption").inner_text()
    for width, height in SIZES.items():
        tab.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            tab.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
            tab.evaluate("window.scrollTo(0, 0)")
            if width < 500:
                tab.locator("#tokens").evaluate("one => one.scrollIntoView()")
            assert faults_at_rest(tab) == {}
            tab.screenshot(path=screenshots / f"video-{width}-{scheme}.png")
    tab.close()


@pytest.fixture(scope="module")
def library():
    """What the library keeps of an image for a question, with 64 tokens."""
    model, processor, clip = pocket.load()

    def kept(path, question):
        with attach(model, Script(keep=64), processor=processor, dual_encoder=clip) as pruner:
            pruner.ask_many(path, [question], max_new_tokens=1)
        return pruner.last.kept.tolist()

    return kept


def test_paste_from_the_clipboard(tab, scene, library):
    path, question, _ = scene
    wait_for_count(tab, 64)
    ask_for(tab, question)
    before = tab.locator("#tokens image").get_attribute("href")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.evaluate(
        """async (data) => {
          const blob = await (await fetch('data:image/png;base64,' + data)).blob();
          await navigator.clipboard.write([new ClipboardItem({ 'image/png': blob })]);
        }""",
        base64.b64encode(path.read_bytes()).decode(),
    )
    tab.get_by_label("Remove Image").first.click()
    tab.wait_for_selector(".vlp-empty")
    tab.get_by_label("Paste from clipboard").first.click()
    tab.wait_for_function(
        "old => { const now = document.querySelector('#tokens image'); return now && now.getAttribute('href') != old }",
        arg=before,
    )
    wait_for_count(tab, 64)
    assert kept_tokens(tab) == library(path, question)


def test_a_picture_of_the_webcam(tab):
    wait_for_count(tab, 64)
    before = tab.locator("#tokens image").get_attribute("href")
    tab.context.grant_permissions(["camera"])
    tab.get_by_label("Remove Image").first.click()
    tab.wait_for_selector(".vlp-empty")
    tab.get_by_label("Capture from camera").first.click()
    tab.get_by_text("Click to Access Webcam").click()
    # the button is there before the camera's first picture, and then takes nothing
    tab.wait_for_function("() => [...document.querySelectorAll('video')].some(video => video.videoWidth > 0)")
    tab.get_by_label("capture photo").click()
    tab.wait_for_function(
        "old => { const now = document.querySelector('#tokens image'); return now && now.getAttribute('href') != old }",
        arg=before,
    )
    wait_for_count(tab, 64)
