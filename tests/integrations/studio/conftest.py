"""The studio in a real browser: `make test-studio`. Needs gradio, Playwright's client, and Debian's Chromium.

Screenshots go to `runs/studio`, or where STUDIO_SCREENSHOTS says; some of them are kept in docs/studio/.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("gradio") is None or find_spec("playwright") is None:
    collect_ignore_glob = ["*.py"]

SCREENSHOTS = Path(os.environ.get("STUDIO_SCREENSHOTS", "runs/studio"))


@pytest.fixture(scope="session")
def server():
    """The studio with the pocket model, in this process."""
    import torch

    from vlprune.cli.options import parse_method
    from vlprune.evaluation.load_model import load_model
    from vlprune.studio.serve import Server

    torch.set_num_threads(1)
    with Server(load_model("pocket", None, "cpu"), parse_method) as server:
        yield server


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", *camera])
        yield opened
        opened.close()


@pytest.fixture
def open_tab(server, browser):
    """A function that opens a tab with the page, in a browser context of its own; errors in the page fail the test."""
    contexts, errors = [], []

    def open_tab(width=1280, height=900, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.requested = []
        tab.on("request", lambda request: tab.requested.append(request.url))
        tab.goto(server.url)
        tab.wait_for_selector("#tokens svg")
        return tab

    yield open_tab
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def tab(open_tab):
    return open_tab()


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A drawn scene that is none of the page's examples: its file, a question and the right answer."""
    from vlprune import pocket

    (drawn,) = pocket.scenes("test", 1, start=7)
    path = tmp_path_factory.mktemp("scene") / "my scene.png"
    pocket.images([drawn])[0].save(path)
    question = next(question for question in pocket.questions(drawn) if question.kind == "color")
    return path, question.text, question.answer


@pytest.fixture(scope="session")
def screenshots():
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
