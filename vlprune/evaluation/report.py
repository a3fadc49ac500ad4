"""One HTML page with the tables and figures of runs, pictures included: it opens offline and travels as one file."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from vlprune.errors import UserError, describe_error
from vlprune.evaluation.report_summary import best_by_budget, describe_asked
from vlprune.evaluation.result import PAPER_TITLE, ResultTable
from vlprune.evaluation.run_folder import command_line, read_manifest
from vlprune.media.outputs import MARK, write_text

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 100rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h1 { font-size: clamp(1.1rem, 6vw, 2rem); white-space: nowrap; }
h2 { margin-top: 3rem; border-bottom: 1px solid #8886; }
table { border-collapse: collapse; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.7rem; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
.number { text-align: right; white-space: nowrap; } thead th { border-bottom: 2px solid #888; }
tbody tr:hover { background: #8882; }
.wide { overflow-x: auto; } .note { opacity: 0.75; max-width: 60rem; }
.notice { border-left: 4px solid #d80; padding-left: 0.7rem; font-weight: bold; }
#summary { border: 1px solid #8886; border-radius: 8px; padding: 0 1rem 0.5rem; } #summary h2 { margin-top: 1rem; }
button { all: unset; cursor: pointer; } button:focus-visible, .wide:focus-visible { outline: 2px solid #0072b2; }
th { cursor: pointer; }
th[aria-sort=ascending]::after { content: " \\25B2"; } th[aria-sort=descending]::after { content: " \\25BC"; }
code { white-space: pre-wrap; overflow-wrap: anywhere; }
/* a shadow at an edge beyond which there is more: the first two layers scroll along and hide it at the ends */
.wide { background: linear-gradient(to right, Canvas 40%, transparent) 0 0 / 2.5rem 100% local,
  linear-gradient(to left, Canvas 40%, transparent) 100% 0 / 2.5rem 100% local,
  linear-gradient(to right, #888a, transparent) 0 0 / 0.8rem 100% scroll,
  linear-gradient(to left, #888a, transparent) 100% 0 / 0.8rem 100% scroll; background-repeat: no-repeat; }
.picture button { display: block; } .hint { display: none; }
.picture img { display: block; max-width: 100%; height: auto; background: white; }
.picture button[aria-pressed=true] img { max-width: none; }
@media (max-width: 700px) {
  body { margin: 1rem auto; padding: 0 0.75rem; } #summary { padding: 0 0.75rem 0.5rem; } ul { padding-left: 1.2rem; }
  th, td { padding: 0.15rem 0.3rem; } .number { white-space: normal; } .number span { white-space: nowrap; }
  /* the first column, which names the rows, stays in view */
  th:first-child, td:first-child { position: sticky; left: 0; max-width: 40vw; background: Canvas; }
  .hint { display: block; }
  .picture button[aria-pressed=true] img { width: 40rem; }
}
"""
#: Sorts a table by the column whose head is clicked, or has Enter pressed on it: numbers by value, words by letters.
#: A picture that is squeezed to the page's width is shown larger on a click: on a phone its words are too small.
SCRIPT = """
const number = (text) => {
  const found = text.replace(/,/g, "").match(/^[+-]?\\d+(\\.\\d+)?(e[+-]?\\d+)?/);
  return found ? Number(found[0]) : NaN;
};
const before = (a, b) => { const x = number(a), y = number(b);
  return isNaN(x) && isNaN(y) ? a.localeCompare(b) : isNaN(x) ? 1 : isNaN(y) ? -1 : x - y; };
document.querySelectorAll("table").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows], text = (row) => row.cells[i].textContent.trim();
      rows.sort((a, b) => up ? before(text(a), text(b)) : before(text(b), text(a)));
      body.append(...rows);
    };
    const button = document.createElement("button");  // of its own: the head stays a column's head for screen readers
    button.append(...head.childNodes);
    button.title = "sort";
    head.append(button);
    head.addEventListener("click", sort);
  });
});
document.querySelectorAll(".picture button").forEach((button) => button.addEventListener("click", () => {
  button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
}));
"""
INTERVAL = re.compile(r"(\[[^\]]*\])")  # stays on one line, where a phone breaks what stands before it
NOT_FINISHED = "{!r} holds a run that is not finished: start it again to go on."
#: Markdown inside a line, but for code, and the HTML it becomes.
MARKUP = [
    (re.compile(r"\*\*(?=\S)([^*]+)(?<=\S)\*\*"), r"<strong>\1</strong>"),
    (re.compile(r"(?<![\w*])\*(?=\S)([^*]+)(?<=\S)\*(?![\w*])"), r"<em>\1</em>"),
    (re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)"), r"\1"),  # of a link its words, as the page needs nothing else
]


def write_report(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write the page of these runs, in their order; a folder that is given twice is shown once."""
    once = list({Path(folder).resolve(): Path(folder) for folder in folders}.values())
    try:
        page = _page(once)
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # numbers of another kind than any run has
        named = ", ".join(repr(str(folder)) for folder in once)
        raise UserError(f"{named}: a result.json is not one of vlprune's ({describe_error(error)}).") from error
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"--out {path} cannot be written ({error.strerror}).") from error


def _page(once: Sequence[Path]) -> str:
    """The page of these runs."""
    results = [_read_result(folder) for folder in once]
    above = _pictured(results)
    sections = [_run_section(*run, number, above) for number, run in enumerate(zip(once, results), start=1)]
    names = [name for name, _ in sections]
    title = f"vlprune report: {len(once)} run{'s' * (len(once) > 1)}"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="{MARK}">\n'
        f"<title>{title}</title>\n"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{title}</h1>\n{_summary(once, results, names, above)}{_paper_summary(results)}"
        f"{''.join(body for _, body in sections)}<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _read_result(folder: Path) -> dict[str, Any]:
    """What a run saved as its result."""
    read_manifest(folder)  # says what is wrong where there is no run
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(NOT_FINISHED.format(str(folder))) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{str(folder / 'result.json')!r} cannot be read ({error}).") from error
    try:
        for table in found["tables"]:
            ResultTable(**table)
        for name in (found["title"], *found["figures"]):
            Path(name)
        found["data"].items()
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{str(folder / 'result.json')!r} is not one of vlprune's ({describe_error(error)})."
        ) from error
    return found


def _pictured(results: Sequence[Mapping[str, Any]]) -> int:
    """The number of the run whose first picture stands in the summary: one with scores, or the first; 0 if none."""
    have = [number for number, found in enumerate(results, start=1) if found["figures"]]
    return next((number for number in have if results[number - 1]["data"].get("scores")), next(iter(have), 0))


def _summary(folders: Sequence[Path], results: Sequence[Mapping[str, Any]], names: Sequence[str], above: int) -> str:
    """What was asked, with links; the best method by budget where a run has scores; and the picture of run `above`."""
    asked = [describe_asked(read_manifest(folder)["settings"]) for folder in folders]
    items = "".join(
        f'<li><a href="#run{i}">{name}</a>{f": {escape(words)}" if words else ""}</li>'
        for i, (name, words) in enumerate(zip(names, asked), start=1)
    )
    parts = [f'<section id="summary">\n<h2>In short</h2>\n<ul>{items}</ul>\n']
    for folder, found in zip(folders, results):
        evaluated = read_manifest(folder)["settings"]["command"] == "eval"
        table = best_by_budget(found["data"].get("scores", {})) if evaluated else None
        if table is not None:
            of_run = f": {folder.resolve().name}" if len(results) > 1 else ""
            parts.append(_table_html(replace(table, title=table.title + of_run)))
    if above:
        found, folder = results[above - 1], folders[above - 1]
        name = found["figures"][0]
        parts.append(_picture_html(f"{found['title']}: {Path(name).stem}", _read_picture(folder, name)))
    return "".join([*parts, "</section>\n"])


def _read_picture(folder: Path, name: str) -> bytes:
    """A picture of a run: a PNG that lies in its folder, for somebody else's folder may name any file."""
    path = folder / name
    try:
        png = path.read_bytes() if path.resolve().parent == folder.resolve() else b""
    except FileNotFoundError:
        raise UserError(NOT_FINISHED.format(str(folder))) from None
    if not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise UserError(f"{str(folder)!r} names the picture {name!r}, which is no PNG of its own: it is not shown.")
    return png


def _paper_summary(results: Sequence[Mapping[str, Any]]) -> str:
    """What several runs set beside the paper, in one table; nothing where at most one did, which shows its own."""
    beside = [
        (found["title"], table) for found in results for table in found["tables"] if table["title"] == PAPER_TITLE
    ]
    if len(beside) < 2:
        return ""
    rows = [[title, *row] for title, table in beside for row in table["rows"]]
    same = sum(row[-1] == "yes" for row in rows)
    note = f"{same} of {len(rows)} in the same direction; what was run, and what that means, is said with each run."
    return _table_html(ResultTable(PAPER_TITLE, ["run", *beside[0][1]["columns"]], rows, note))


def _run_section(folder: Path, found: Mapping[str, Any], number: int, above: int) -> tuple[str, str]:
    """The title of a run with its folder's name, and its section of the page, both as HTML.

    The first picture of run number `above` stands in the summary already.
    """
    manifest = read_manifest(folder)
    pictures = {name: _read_picture(folder, name) for name in found["figures"][number == above :]}
    parts = [f'<section id="run{number}">\n<h2>{render_inline(found["title"])}</h2>\n']
    if found.get("notice"):
        parts.append(f'<p class="notice">{render_inline(found["notice"])}</p>\n')
    made = ", ".join(f"{name} {value}" for name, value in manifest["machine"].items())
    parts.append(f'<p><code>{escape(command_line(manifest))}</code></p>\n<p class="note">{escape(made)}</p>\n')
    parts += [_table_html(ResultTable(**table)) for table in found["tables"]]
    parts += [_picture_html(f"{found['title']}: {Path(name).stem}", png) for name, png in pictures.items()]
    name = f"{render_inline(found['title'])} ({escape(folder.resolve().name)})"
    return name, "".join([*parts, "</section>\n"])


def render_inline(text: str) -> str:
    """A line of Markdown as HTML: code, bold, italic, and the words of links.

    >>> render_inline("`a < b` is **not** *that*, see [docs](docs.md); 2 * 3 * 4")
    '<code>a &lt; b</code> is <strong>not</strong> <em>that</em>, see docs; 2 * 3 * 4'
    """
    pieces = re.split(r"`([^`]+)`", escape(text))  # every other one is code, where other signs mean nothing
    for pattern, html in MARKUP:
        pieces[::2] = [pattern.sub(html, piece) for piece in pieces[::2]]
    pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
    return "".join(pieces)


def _picture_html(title: str, png: bytes) -> str:
    """A picture in the page, as wide as it is or as the page is; a click shows it larger, and then it scrolls."""
    width, height = struct.unpack(">II", png[16:24])  # where a PNG has them
    data, said = base64.b64encode(png).decode("ascii"), escape(title)
    image = f'<img alt="{said}" width="{width}" height="{height}" src="data:image/png;base64,{data}">'
    return (
        f'{_wide("picture", said)}<button aria-pressed="false" title="larger or smaller">{image}</button></div>\n'
        '<p class="note hint">Touch the picture to read its words, and again to see all of it.</p>\n'
    )


def _wide(kind: str, said: str) -> str:
    """The start of a part that scrolls sideways where it is too wide, also by the keyboard; `said` is its name."""
    return f'<div class="wide {kind}" tabindex="0" role="region" aria-label="{said}">'


def _table_html(table: ResultTable) -> str:
    """A table as HTML, numbers to the right and words to the left."""
    sides = [' class="number"' if table.is_numeric(i) else "" for i in range(len(table.columns))]

    def line(cells: Sequence[str], tag: str) -> str:
        shown = [INTERVAL.sub(r"<span>\1</span>", render_inline(cell)) for cell in cells]
        found = (f"<{tag}{side}>{cell}</{tag}>" for cell, side in zip(shown, sides))
        return "<tr>" + "".join(found) + "</tr>\n"

    rows = "".join(line(row, "td") for row in table.rows)
    note = f'<p class="note">{render_inline(table.note)}</p>\n' if table.note else ""
    head = f"<thead>{line(table.columns, 'th')}</thead>"
    title = f"<h3>{render_inline(table.title)}</h3>\n"
    if not rows:  # the note says why there are none
        return title + note
    said = re.sub(r"<[^>]*>", "", render_inline(table.title))
    return f"{title}{_wide('table', said)}<table>{head}<tbody>\n{rows}</tbody></table></div>\n{note}"
