"""The summary that a report opens with: what was asked, and the best method at each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlprune.evaluation.result import ResultTable

#: Settings that say what was asked, in the order in which they are named.
ASKED = ("model", "data", "split", "questions", "small")
BEST_NOTE = (
    "Best: most right answers at this budget, in %, with the 95 % interval. Level with it: methods whose own interval "
    "reaches the best one's share; where there are any, the order among them may be chance."
)
MOST_NAMED = 4  # methods that are level with the best


def describe_asked(settings: Mapping[str, Any]) -> str:
    """What a run asked, from its settings.

    >>> describe_asked({"command": "eval", "model": "pocket", "split": "test", "questions": 600, "data": None})
    'model pocket, split test, questions 600'
    """
    said = [(name, settings.get(name)) for name in ASKED]
    words = [name if value is True else f"{name} {value}" for name, value in said if value not in (None, False)]
    return ", ".join(words)


def best_by_budget(scores: Mapping[str, Mapping[str, Any]]) -> ResultTable | None:
    """The best method at each budget of a run of `vlprune eval`, and those that are level with it.

    `scores` are by cell, as the run saved them: "script@64". The oracle, which is told where to look, does not compete.
    None where no cell has a budget.

    >>> def score(right, low, high): return {"accuracy": right, "interval": [low, high], "entering": 64}
    >>> table = best_by_budget({"script@64": score(0.9, 0.8, 0.95), "random@64": score(0.5, 0.4, 0.6)})
    >>> table.rows
    [['64', 'script', '90.0 [80.0, 95.0]', 'nobody']]
    """
    budgets: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell, score in scores.items():
        method, at, keep = cell.rpartition("@")
        if at and method != "oracle":
            budgets.setdefault(keep, {})[method] = score
    rows = []
    for keep, methods in budgets.items():
        best = max(methods, key=lambda name: (methods[name]["accuracy"], name))
        share = methods[best]["accuracy"]
        level = [name for name, one in methods.items() if name != best and one["interval"][1] >= share]
        level.sort(key=lambda name: -methods[name]["accuracy"])
        rows.append([keep, best, _with_interval(methods[best]), _name_some(level)])
    if not rows:
        return None
    whole = scores.get("all tokens")
    note = BEST_NOTE if whole is None else f"With all tokens: {_with_interval(whole)}. {BEST_NOTE}"
    return ResultTable("Best method by budget", ["keep", "best", "right", "level with it"], rows, note)


def _with_interval(score: Mapping[str, Any]) -> str:
    low, high = score["interval"]
    return f"{100 * score['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _name_some(names: Sequence[str]) -> str:
    """Some names, and how many more there are.

    >>> _name_some(["a", "b", "c", "d", "e", "f"]), _name_some([])
    ('a, b, c, d and 2 more', 'nobody')
    """
    if not names:
        return "nobody"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
