"""One HTML page with the tables and figures of runs, pictures included: it opens offline and travels as one file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vlprune.errors import UserError
from vlprune.evaluation.run_folder import command_line, read_manifest, write_atomically
from vlprune.media.outputs import MARK

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-bottom: 1px solid #8886; }
table { border-collapse: collapse; margin: 0.5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15rem 0.7rem; border-bottom: 1px solid #8884; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid #888; }
tbody tr:hover { background: #8882; }
.wide { overflow-x: auto; } .note { opacity: 0.75; max-width: 60rem; }
img { max-width: 100%; height: auto; background: white; } code { white-space: pre-wrap; }
"""


def write_report(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write the page of these runs, in their order."""
    sections = [_run_section(Path(folder), number) for number, folder in enumerate(folders, start=1)]
    title = "vlprune: " + ", ".join(name for name, _ in sections)
    links = "".join(f'<li><a href="#run{i}">{escape(name)}</a></li>' for i, (name, _) in enumerate(sections, start=1))
    page = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="{MARK}">\n'
        f"<title>{escape(title)}</title>\n"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n<ul>{links}</ul>\n{''.join(body for _, body in sections)}</body>\n</html>\n"
    )
    try:
        write_atomically(Path(path), page)
    except OSError as error:
        raise UserError(f"--out {path} cannot be written ({error.strerror}).") from error


def _run_section(folder: Path, number: int) -> tuple[str, str]:
    """The title of a run, and its section of the page."""
    manifest = read_manifest(folder)
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{str(folder)!r} holds a run that is not finished: start it again to go on.") from None
    parts = [f'<section id="run{number}">\n<h2>{escape(found["title"])}</h2>\n']
    made = ", ".join(f"{name} {value}" for name, value in manifest["machine"].items())
    parts.append(f'<p><code>{escape(command_line(manifest))}</code></p>\n<p class="note">{escape(made)}</p>\n')
    parts += [_table_html(table) for table in found["tables"]]
    for name in found["figures"]:
        data = base64.b64encode((folder / name).read_bytes()).decode("ascii")
        alt = escape(f"{found['title']}: {Path(name).stem}", quote=True)
        parts.append(f'<p><img alt="{alt}" src="data:image/png;base64,{data}"></p>\n')
    return found["title"], "".join([*parts, "</section>\n"])


def _table_html(table: Mapping[str, Any]) -> str:
    """A table of `result.json` as HTML."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    rows = "".join(line(row, "td") for row in table["rows"])
    note = f'<p class="note">{escape(table["note"])}</p>\n' if table["note"] else ""
    head = f"<thead>{line(table['columns'], 'th')}</thead>"
    title = f"<h3>{escape(table['title'])}</h3>\n"
    return f'{title}<div class="wide"><table>{head}<tbody>\n{rows}</tbody></table></div>\n{note}'
