"""The report: one file with everything in it."""

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.run_folder import RunFolder


class Page(HTMLParser):
    """What a page shows: its tables' cells, its pictures' sources, and whether its tags fit."""

    EMPTY = ("meta", "img", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.tables, self.sources, self.texts, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.sources += [given[name] for name in ("src", "href", "srcset") if name in given]
        assert tag not in ("script", "link", "iframe")
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        self.texts.append(data)


@pytest.fixture
def finished(tmp_path):
    run = RunFolder(tmp_path / "run", "eval", {"model": "pocket", "questions": 6}, {"methods": "all"})
    figure = Figure()
    figure.subplots().plot([1, 2])
    table = ResultTable("<Accuracy> & more", ["method", "right"], [["a<b>", "99 %"], ["x & y", '"1"']], "Read <this>.")
    StudyResult("First", [table, ResultTable("Second", ["k"], [["v"]])], {"curve": figure}, {"n": 1}).save(run.path)
    return run.path


def test_one_file_with_tables_and_pictures(program, finished):
    code, out, err = program("report", finished, finished, "-o", "page.html")
    assert (code, out) == (0, "wrote page.html\n"), err
    text = Path("page.html").read_text()
    page = Page(text)
    assert page.tables[:2] == [[["method", "right"], ["a<b>", "99 %"], ["x & y", '"1"']], [["k"], ["v"]]]
    assert page.tables[2:] == page.tables[:2]
    pictures = [source for source in page.sources if not source.startswith("#")]
    wanted = base64.b64encode((finished / "curve.png").read_bytes()).decode()
    assert pictures == [f"data:image/png;base64,{wanted}"] * 2
    assert [source for source in page.sources if source.startswith("#")] == ["#run1", "#run2"]
    assert all(f'id="{source[1:]}"' in text for source in page.sources if source.startswith("#"))
    assert "http" not in text.replace(wanted, "")
    assert "vlprune eval --model pocket --questions 6 --methods all" in page.texts
    assert "Read <this>." in page.texts


def test_of_a_real_run(program):
    assert program("study", "thresholds", "--small", "--out", "run")[0] == 0
    assert program("report", "run")[0] == 0
    found = json.loads(Path("run/result.json").read_text())
    page = Page(Path("report.html").read_text())
    assert page.tables == [[table["columns"], *table["rows"]] for table in found["tables"]]


def test_refusals(program, tmp_path, finished):
    code, _, err = program("report", "nowhere")
    assert (code, err) == (2, "vlprune: 'nowhere' holds no run of `vlprune eval` or `vlprune study`.\n")
    RunFolder(tmp_path / "half", "eval", {})
    code, _, err = program("report", tmp_path / "half")
    assert code == 2
    assert "is not finished" in err
    code, _, err = program("report", finished, "-o", "no/such/page.html")
    assert code == 2
    assert "there is no folder 'no/such'" in err
    for force in ((), ("--force",)):
        code, _, err = program("report", finished, "-o", finished / "result.json", *force)
        assert code == 2
        assert "is read by this command" in err
    (tmp_path / "own.html").write_text("mine")
    assert "was not made by vlprune" in program("report", finished, "-o", "own.html")[2]
    for force in (("--force",), ()):
        assert program("report", finished, "-o", "own.html", *force)[0] == 0
