"""The HTML report in a real browser: tables sort on a click and by the keyboard, and a phone shows all of it."""

import pytest
from matplotlib.figure import Figure

from tests.integrations.studio.test_looks import OVERFLOWING
from vlprune.evaluation.report import write_report
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.run_folder import RunFolder


@pytest.fixture
def report(tmp_path):
    """A report of one run of `vlprune eval`, as a file's address."""
    score = {"entering": 64.0, "accuracy": 0.9, "interval": [0.85, 0.94]}
    rows = [["script", "64", "9.5 [1.0, 2.0]"], ["random", "1,024", "100.0 [99.0, 100.0]"], ["cdpruner", "128", "-"]]
    figure = Figure(figsize=(8.5, 5))
    figure.subplots().plot([1, 2])
    run = RunFolder(tmp_path / "run", "eval", {"model": "pocket", "questions": 6})
    table = ResultTable("Accuracy", ["method", "keep", "right"], rows, "Read this.")
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
    heads.nth(0).focus()
    page.keyboard.press("Enter")
    assert column(page, 0) == ["cdpruner", "random", "script"]
    assert heads.nth(1).get_attribute("aria-sort") is None
    heads.nth(2).click()
    assert column(page, 2) == ["9.5 [1.0, 2.0]", "100.0 [99.0, 100.0]", "-"]  # by value, not by letters


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_nothing_overflows(open_report, screenshots, width, scheme):
    page = open_report(width, scheme)
    assert page.evaluate(OVERFLOWING) == [False, []]
    assert "script" in page.locator("#summary tbody").inner_text()
    page.screenshot(path=screenshots / f"report-{width}-{scheme}.png", full_page=True)
