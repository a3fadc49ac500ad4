"""The report: one file with everything in it."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from vlprune.errors import UserError
from vlprune.evaluation.report import write_report
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.run_folder import RunFolder


class Page(HTMLParser):
    """What a page shows: its tables' cells and their sides, its pictures, its headings, and whether its tags fit."""

    EMPTY = ("meta", "img", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.tables, self.sources, self.texts, self.open = [], [], [], []
        self.sides, self.pictures, self.headings = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.sources += [given[name] for name in ("src", "href", "srcset") if name in given]
        assert tag not in ("link", "iframe")
        assert tag != "script" or not given  # ours alone, in the page itself
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "img":
            self.pictures.append((given["width"], given["height"]))
        if tag in ("title", "h1"):
            self.headings.append("")
        if tag == "table":
            self.tables.append([])
            self.sides.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            if tag == "th":
                self.sides[-1].append("right" if given.get("class") == "number" else "left")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] in ("title", "h1"):
            self.headings[-1] += data
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
    other = finished.parent / "other"
    shutil.copytree(finished, other)
    code, out, err = program("report", finished, other, "-o", "page.html")
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


def test_the_title_is_short_and_a_run_given_twice_appears_once(program, finished, tmp_path):
    (tmp_path / "link").symlink_to(finished)
    assert program("report", finished, "run", tmp_path / "link", "-o", "page.html")[0] == 0
    page = Page(Path("page.html").read_text())
    assert page.headings == ["vlprune report: 1 run"] * 2
    assert len(page.tables) == 2
    shutil.copytree(finished, tmp_path / "other")
    assert program("report", finished, tmp_path / "other", "-o", "page.html")[0] == 0
    page = Page(Path("page.html").read_text())
    assert page.headings == ["vlprune report: 2 runs"] * 2
    assert {"First (run)", "First (other)"} <= set(page.texts)  # the list of contents tells them apart


def test_no_raw_markdown(program, tmp_path):
    run = RunFolder(tmp_path / "run", "study errors", {})
    rows = [["`keep=4`", "**1** of *all* `a*b*c`"], ["dpp_only", "see [docs](http://x.y/z.md), 2 * 3 * 4"]]
    table = ResultTable("Of `script`", ["**a**", "b"], rows, "Say `vlprune methods`; *exist* asks.")
    StudyResult("First", [table], notice="**Mind**.").save(run.path)
    assert program("report", "run")[0] == 0
    text = Path("report.html").read_text()
    page = Page(text)
    assert page.tables == [[["a", "b"], ["keep=4", "1 of all a*b*c"], ["dpp_only", "see docs, 2 * 3 * 4"]]]
    assert not any(sign in text for sign in ("`", "**", "*exist*", "*all*", "](", "http"))
    assert "<em>exist</em>" in text
    assert "<code>vlprune methods</code>" in text


def test_words_are_set_to_the_left_and_numbers_to_the_right(program, tmp_path):
    columns = {
        "m": ["192", "16"],
        "method": ["script", "random"],
        "right": ["99.4 [98.7, 99.8]", "100.0 [61.0, 100.0]"],
        "p": ["", "1.2e-05"],
        "faster": ["1.55×", "-"],
        "share": ["+3.0 %", "1,024"],
        "value": ["0.3 (the paper's)", "0.5"],
        "GSP": ["✓", "–"],
        "none": ["", "-"],
    }
    table = ResultTable("T", list(columns), [list(row) for row in zip(*columns.values())])
    StudyResult("First", [table]).save(RunFolder(tmp_path / "run", "eval", {}).path)
    assert program("report", "run")[0] == 0
    text = Path("report.html").read_text()
    right = {"m", "right", "p", "faster", "share"}
    assert Page(text).sides == [["right" if name in right else "left" for name in columns]]
    assert text.count('<td class="number">') == 2 * len(right)
    assert re.search(r"^th, td \{[^}]* text-align: left;", text, re.M)
    assert ".number { text-align: right;" in text
    rule = Path("run/result.md").read_text().splitlines()[5]
    assert rule == "| " + " | ".join("---:" if name in right else "---" for name in columns) + " |"


def test_on_a_narrow_screen(program, tmp_path):
    """The title takes one line, a long command is broken, and a table without rows leaves its note alone."""
    tables = [ResultTable("None", ["a", "b"], [], "No rows: nowhere.")]
    StudyResult("First", tables).save(RunFolder(tmp_path / "run", "eval", {"methods": "a" * 400}).path)
    assert program("report", "run")[0] == 0
    text = Path("report.html").read_text()
    assert "h1 { font-size: clamp(1.1rem, 6vw, 2rem); white-space: nowrap; }" in text
    assert "overflow-wrap: anywhere" in text
    page = Page(text)
    assert page.tables == []
    assert {"None", "No rows: nowhere."} <= set(page.texts)


def test_pictures_have_their_own_size(program, finished):
    """A pixel of the picture is one of the page, unless the page is narrower: then a click gives it its size."""
    assert program("report", finished)[0] == 0
    text = Path("report.html").read_text()
    with Image.open(finished / "curve.png") as picture:
        assert Page(text).pictures == [tuple(map(str, picture.size))]
    assert ".picture button[aria-pressed=true] img { max-width: none; }" in text
    (start,) = [line for line in text.splitlines() if "<img" in line]
    assert start.startswith('<div class="wide picture" tabindex="0"')  # where it is wider than the page, it scrolls
    assert ".wide { overflow-x: auto; }" in text


def test_of_a_real_run(program):
    assert program("study", "thresholds", "--small", "--questions", 2, "--out", "run")[0] == 0
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
    (finished / "curve.png").rename(tmp_path / "curve.png")
    assert "is not finished" in program("report", finished)[2]
    (tmp_path / "curve.png").rename(finished / "curve.png")
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


def test_it_opens_with_a_summary(program):
    """What was asked, the best method at each budget with its interval and who is level with it, and the curves."""
    assert program("eval", "--methods", "script,random", "--keep", "64,4", "--questions", 2, "--out", "run")[0] == 0
    assert program("report", "run")[0] == 0
    text = Path("report.html").read_text()
    page, found = Page(text), json.loads(Path("run/result.json").read_text())
    summary = text[text.index('id="summary"') : text.index('id="run1"')]
    assert "model pocket, split test, questions 2" in summary
    assert summary.count("<img") == text.count("<img") == 1
    (head, *rows), scores = page.tables[0], found["data"]["scores"]
    assert head == ["keep", "best", "right", "level with it"]
    assert [row[0] for row in rows] == ["64", "4"]
    for keep, best, right, level in rows:
        shares = {name: scores[f"{name}@{keep}"]["accuracy"] for name in ("script", "random")}
        other = "random" if best == "script" else "script"
        assert shares[best] == max(shares.values())
        low, high = scores[f"{best}@{keep}"]["interval"]
        assert right == f"{100 * shares[best]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        assert level == (other if scores[f"{other}@{keep}"]["interval"][1] >= shares[best] else "nobody")


@pytest.mark.parametrize("name", ["../secret.png", "{}/secret.png", "link.png", "notes.txt"])
def test_a_run_of_somebody_else_shows_no_other_file(tmp_path, name):
    """Its result.json may name any path; the page would carry that file away."""
    secret = tmp_path / "secret.png"
    Image.new("RGB", (3, 3)).save(secret)
    run = RunFolder(tmp_path / "run", "eval", {})
    StudyResult("Theirs", [ResultTable("t", ["a"], [["1"]])]).save(run.path)
    (run.path / "link.png").symlink_to(secret)
    (run.path / "notes.txt").write_text("no picture")
    result = json.loads((run.path / "result.json").read_text())
    (run.path / "result.json").write_text(json.dumps({**result, "figures": [name.format(tmp_path)]}))
    with pytest.raises(UserError, match=r"which is no PNG of its own: it is not shown\.$"):
        write_report([run.path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "change", [{"tables": 5}, {"figures": None}, {"title": 3}, {"data": []}, {"tables": [{"a": 1}]}, {"figures": [1]}]
)
def test_a_result_that_is_none(tmp_path, change):
    run = RunFolder(tmp_path / "run", "eval", {})
    StudyResult("Theirs", [ResultTable("t", ["a"], [["1"]])]).save(run.path)
    result = json.loads((run.path / "result.json").read_text())
    (run.path / "result.json").write_text(json.dumps({**result, **change}))
    other = RunFolder(tmp_path / "other", "eval", {})
    StudyResult("Ours", [ResultTable("t", ["a"], [["1"]])]).save(other.path)
    with pytest.raises(UserError, match=r"^'[^']*/run/result\.json' is not one of vlprune's \("):
        write_report([other.path, run.path], tmp_path / "report.html")
    (run.path / "result.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        write_report([run.path], tmp_path / "report.html")


def test_hostile_words_are_escaped(tmp_path):
    words = "<script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x'"
    run = RunFolder(tmp_path / "run", "eval", {"model": words})
    run.save_methods({words: words})
    table = ResultTable(words, [words], [[words]], words)
    StudyResult(words, [table], notice=words).save(run.path)
    write_report([run.path], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    page = Page(text)
    assert not page.pictures
