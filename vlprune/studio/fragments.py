"""Tables and paragraphs of the page as HTML; all that a user or a model wrote is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from vlprune.evaluation.compare import MethodResult
from vlprune.measure.format import format_amount, format_milliseconds
from vlprune.studio.explain import Step
from vlprune.studio.session import TokenPair

ASSETS = Path(__file__).parent / "assets"
ROWS = ("visual tokens", "KV cache", "LLM FLOPs", "selection", "prefill", "decode", "all but vision")
MOST_ON_A_PHONE = 3  # columns of a table that fit beside each other


def table_html(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table; the first column heads the rows.

    On a phone one of many columns has a block for each row, in which each cell has its column's name: see page.css.
    Roles are said, as a browser forgets those of a table that is laid out as blocks. What is too wide even so scrolls.

    >>> table_html(["a", "b"], [["x", "<1>"]], "Sums").count("&lt;1&gt;")
    1
    """
    columns, caption = [escape(name) for name in columns], escape(caption)
    head = "".join(f'<th role="columnheader">{name}</th>' for name in columns)
    body = "".join(
        f'<tr role="row"><th role="rowheader">{escape(row[0])}</th>'
        + "".join(
            f'<td role="cell" data-column="{name}">{escape(cell)}</td>' for name, cell in zip(columns[1:], row[1:])
        )
        + "</tr>"
        for row in rows
    )
    many = " vlp-many" if len(columns) > MOST_ON_A_PHONE else ""
    return (
        f'<p class="vlp-note">{caption}</p><div class="vlp-wide{many}" tabindex="0" role="region" '
        f'aria-label="{caption}"><table role="table" aria-label="{caption}">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>'
    )


def answer_html(result: MethodResult, done: bool) -> str:
    """An answer, as far as it is written, under its name."""
    said = result.reason or result.answer or ("(nothing)" if done else "…")
    kind = "reason" if result.reason else "said"
    return f'<div class="vlp-answer"><h3>{escape(result.name)}</h3><p class="{kind}">{escape(said)}</p></div>'


def answers_html(results: Sequence[MethodResult], done: bool) -> str:
    """Answers side by side."""
    return f'<div class="vlp-answers" aria-live="polite">{"".join(answer_html(one, done) for one in results)}</div>'


def _costs(result: MethodResult) -> list[str]:
    """What an answer cost, in the order of `ROWS`."""
    cost = result.cost
    if cost is None:
        return ["-"] * len(ROWS)
    times = cost.latency
    entering, average = result.accounting
    count = f"{entering:,}" if round(average) == entering else f"{entering:,}, {average:,.0f} a layer"
    flops = "-" if cost.flops is None else format_amount(cost.flops.total)
    seconds = (times.question + times.selection, times.prefill, times.decode, times.total - times.vision)
    return [count, format_amount(cost.kv_bytes, "B"), flops, *(f"{format_milliseconds(part)} ms" for part in seconds)]


def cost_html(results: Sequence[MethodResult], vision_seconds: float | None) -> str:
    """What several answers cost, side by side."""
    columns = [_costs(result) for result in results]
    rows = [[name, *(column[i] for column in columns)] for i, name in enumerate(ROWS)]
    tower = "" if vision_seconds is None else f" The tower ran once for all: {format_milliseconds(vision_seconds)} ms."
    return table_html(["", *(result.name for result in results)], rows, f"What each answer cost.{tower}")


def compare_html(results: Sequence[MethodResult], kept: Mapping[str, set[int]], vision_seconds: float | None) -> str:
    """Answers and costs of several methods, and how far they keep the same tokens."""
    parts = [answers_html(results, done=True), cost_html([one for one in results if one.cost], vision_seconds)]
    if len(kept) > 1:
        rows = [[name, *(f"{overlap(one, other):.2f}" for other in kept.values())] for name, one in kept.items()]
        parts.append(table_html(["", *kept], rows, "Overlap of what they keep: shared tokens over all (IoU)."))
    return "".join(parts)


def overlap(first: set[int], second: set[int]) -> float:
    """The intersection over the union of two sets; 1 for two empty ones.

    >>> overlap({1, 2, 3}, {2, 3, 4})
    0.5
    """
    union = first | second
    return len(first & second) / len(union) if union else 1.0


def pair_html(pair: TokenPair | None) -> str:
    """How alike two tokens are, in words."""
    if pair is None:
        return '<p class="vlp-note">Pick two tokens in the picture: their cosine shows here.</p>'
    if pair.joined:
        says = f"the graph joins them (at least τ = {pair.tau:g})"
    elif pair.meet:
        says = f"the graph does not join them (below τ = {pair.tau:g})"
    else:
        says = "the graph never compares them: they are on the same side"
    return (
        f'<p class="vlp-pair">Tokens <b>{pair.first}</b> and <b>{pair.second}</b>: cosine <b>{pair.cosine:.3f}</b>; '
        f"{escape(says)}.</p>"
    )


def steps_html(steps: Sequence[Step], token: int, beside: str | None) -> str:
    """Script's five steps with the numbers of a token; `beside` names the method that is chosen, if it is another."""
    other = f"{beside} is chosen above; these are the steps of the paper's Script at the same budget." if beside else ""
    items = "".join(
        f"<li><h3>{escape(step.title)}</h3><p>{escape(step.does)}</p><p><b>This image:</b> {escape(step.image)}</p>"
        f'<p><b>Token {token}</b> {escape(step.token)}</p><p class="vlp-note">'
        f'<a href="#{heading_anchor(step.section)}">Section {escape(step.section)}</a></p></li>'
        for step in steps
    )
    return f'<p class="vlp-note">{escape(other)}</p><ol class="vlp-steps">{items}</ol>'


def heading_anchor(heading: str) -> str:
    """The anchor of a heading of docs/method.md on the page.

    >>> heading_anchor("1. GSP: what repeats")
    'method-1'
    """
    return f"method-{heading.partition('.')[0]}"


def method_text() -> str:
    """The first four sections of docs/method.md, which are Script's steps, with an anchor at each.

    >>> method_text().count('id="method-')
    4
    """
    places = (ASSETS / "method.md", Path(__file__).parents[2] / "docs" / "method.md")  # of a wheel, of a checkout
    found = next(place.read_text(encoding="utf-8") for place in places if place.is_file())
    found = found.partition("\n## 5.")[0]
    found = re.sub(r"(?m)^## (\d+)\. (.*)$", r'<h2 id="method-\1">\1. \2</h2>\n', found)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", found)  # other files are not on the page
