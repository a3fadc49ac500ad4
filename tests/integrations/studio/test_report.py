"""The HTML report in a real browser: tables sort on a click and by the keyboard, and a phone shows all of it."""

import pytest

from tests.integrations.studio.checks import faults
from vlprune.evaluation.plots import plot_curves
from vlprune.evaluation.report import write_report
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.run_folder import RunFolder

NAMES = ("script", "script_plus", "cdpruner", "random")


@pytest.fixture
def report(tmp_path):
    """A report of one run of `vlprune eval`, as a file's address."""
    score = {"entering": 64.0, "accuracy": 0.9, "interval": [0.85, 0.94]}
    columns = ["method", "keep", "entering", "layer average", "right", "relative to all tokens", "p"]
    rows = [
        ["script", "64", "64", "64", "9.5 [1.0, 2.0]", "99.2 [97.3, 100.0]", ""],
        ["random", "1,024", "1024", "1024", "100.0 [99.0, 100.0]", "100.0 [99.2, 100.0]", "1.2e-05"],
        ["cdpruner", "128", "128", "128", "-", "-", ""],
    ]
    curves = {name: [(16, 60.0 + i, 55.0, 70.0), (64, 90.0 + i, 85.0, 96.0)] for i, name in enumerate(NAMES)}
    said = {"x": "visual tokens, mean over the LLM's layers (log scale)", "y": "right answers, %"}
    figure = plot_curves(curves, flat={"all 576 tokens": 97.0}, title="Right answers with fewer visual tokens", **said)
    run = RunFolder(tmp_path / "run", "eval", {"model": "pocket", "questions": 6})
    table = ResultTable("Accuracy", columns, rows, "Read this.")
    data = {"scores": {"script@64": score, "random@64": {**score, "accuracy": 0.2, "interval": [0.1, 0.3]}}}
    StudyResult("Accuracy under pruning", [table], {"accuracy": figure}, data).save(run.path)
    write_report([run.path], tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


@pytest.fixture
def open_report(browser, report):
    pages = []

    def open_report(width, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        pages.append(page)
        page.goto(report)
        return page

    yield open_report
    for page in pages:
        page.close()


def column(page, i):
    return page.locator("#run1 tbody tr").evaluate_all(f"rows => rows.map(row => row.cells[{i}].textContent)")


def test_tables_sort_on_a_click(open_report):
    page = open_report(1280)
    heads = page.locator("#run1 th")
    heads.nth(1).click()
    assert column(page, 1) == ["64", "128", "1,024"]
    assert heads.nth(1).get_attribute("aria-sort") == "ascending"
    heads.nth(1).click()
    assert column(page, 1) == ["1,024", "128", "64"]
    heads.nth(0).locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, 0) == ["cdpruner", "random", "script"]
    assert heads.nth(1).get_attribute("aria-sort") is None
    heads.nth(4).click()
    assert column(page, 4) == ["9.5 [1.0, 2.0]", "100.0 [99.0, 100.0]", "-"]  # by value, not by letters


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_overflows(open_report, screenshots, width, scheme):
    page = open_report(width, scheme)
    assert faults(page) == {}
    assert "script" in page.locator("#summary tbody").inner_text()
    page.screenshot(path=screenshots / f"report-{width}-{scheme}.png", full_page=True)


def test_a_phone_shows_all_of_a_picture_and_on_a_touch_its_words(open_report):
    page = open_report(390)
    picture, region = page.locator("#summary img"), page.locator("#summary .picture")
    assert picture.evaluate("one => one.clientWidth") <= 390
    assert page.get_by_text("Touch the picture").is_visible()
    region.get_by_role("button").press("Enter")
    assert picture.evaluate("one => one.clientWidth") == 640
    assert faults(page) == {}  # it scrolls
    region.focus()
    region.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('#summary .picture').scrollLeft > 0")
    region.get_by_role("button").click()
    assert picture.evaluate("one => one.clientWidth") <= 390
    assert not open_report(1280).get_by_text("Touch the picture").is_visible()
