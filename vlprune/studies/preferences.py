"""What four families of methods would keep: by attention, by relevance, by redundancy, and Script."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import percent
from vlprune.evaluation.answers import Bench
from vlprune.evaluation.plots import panels
from vlprune.evaluation.reference_methods import evidence
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import spearman

if TYPE_CHECKING:
    from vlprune.evaluation.questions import Item
    from vlprune.methods import Method
    from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "answers", (50, 1), (64,)
PICTURES = 6


def study(bench: Bench) -> Result:
    """Maps of what each prefers, how far they agree, and how much of what they keep lies on what was asked about."""
    from vlprune.methods import AttentionTopK, GraphOnly, RelevanceTopK, Script

    keep = bench.keep[0]
    families: dict[str, Method] = {
        "attention": AttentionTopK(keep=keep),
        "relevance": RelevanceTopK(keep=keep),
        "redundancy": GraphOnly(keep=keep),
    }
    lines = bench.ask(families, note=by_score, lenient=True)  # some towers do not show their attention
    lines |= bench.ask({"script": Script(keep=keep)}, note=by_order, lenient=True)
    if len(lines) < 2:
        raise UserError(next(f"{name}: {reason}" for name, reason in bench.run.refused.items()))
    agree = {
        f"{a} and {b}": float(np.mean([spearman(x["map"], y["map"]) for x, y in zip(lines[a], lines[b])]))
        for a, b in combinations(lines, 2)
    }
    rows = [[pair, f"{value:+.2f}"] for pair, value in agree.items()]
    tables = [Table("Do they agree?", ["families", "Spearman's ρ"], rows, f"Mean over {len(bench.items)} questions.")]
    data: dict[str, Any] = {"agreement": agree}
    if bench.drawn:
        data["on_target"] = {name: _on_target(bench, found) for name, found in lines.items()}
        rows = [[name, percent(on), percent(every)] for name, (on, every, _) in data["on_target"].items()]
        chance = next(iter(data["on_target"].values()))[2]
        note = (
            f"Of {keep} tokens, the share in % whose middle lies on what was asked about ({percent(chance)} of the "
            "image), and how often every thing asked about keeps a token. Questions about nothing that is there are "
            "left out."
        )
        tables.append(Table("On what was asked about?", ["family", "% of the kept", "% seen whole"], rows, note))
    return Result("Preferences", tables, {"preferences": _figure(bench, lines)}, data)


def by_score(item: Item, record: Record) -> dict[str, Any]:
    """What the method would rather keep, a number per token: its score."""
    scores = next(iter(record.scores.values()))
    return _map(record, (-scores if record.redundancy is not None else scores).tolist())


def by_order(item: Item, record: Record) -> dict[str, Any]:
    """The same for Script, which ranks only what it may need: earlier choices are higher, the rest is 0."""
    assert record.order is not None
    rank = {token: i for i, token in enumerate(record.order.tolist())}
    kept = set(record.kept.tolist())
    return _map(record, [float(len(rank) - rank[i]) if i in kept else 0.0 for i in range(record.before)])


def _map(record: Record, values: list[float]) -> dict[str, Any]:
    return {"map": [round(value, 6) for value in values], "kept": record.kept.tolist(), "grid": list(record.grid)}


def _on_target(bench: Bench, lines: Any) -> tuple[float, float, float]:
    shares, whole, areas = [], [], []
    for item, line in zip(bench.items, lines):
        things = [set(part.tolist()) for part in evidence(item, line["grid"][0])]
        if things:
            kept, asked = set(line["kept"]), set().union(*things)
            shares.append(len(kept & asked) / len(kept))
            whole.append(all(kept & thing for thing in things))
            areas.append(len(asked) / len(line["map"]))
    return float(np.mean(shares)), float(np.mean(whole)), float(np.mean(areas))


def _figure(bench: Bench, lines: Any) -> Any:
    """Rows of a question each: the image, and every family's map by rank."""
    by_kind = {kind: [i for i, item in enumerate(bench.items) if item.kind == kind] for kind in bench.kinds}
    shown = [own[number % len(own)] for number, own in enumerate(by_kind.values())]  # another image for every kind
    shown = [*shown, *(i for i in range(len(bench.items)) if i not in shown)][:PICTURES]
    rows = []
    for i in shown:
        item = bench.items[i]
        maps = []
        for name, found in lines.items():
            values = np.array(found[i]["map"])
            ranks = np.unique(values, return_inverse=True)[1]
            maps.append((name, ranks.reshape(found[i]["grid"])))
        rows.append([(item.text, np.asarray(item.image())), *maps])
    return panels(rows)
