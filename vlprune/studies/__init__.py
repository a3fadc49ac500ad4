"""Accuracy under pruning, and the paper's tables and figures: `vlprune eval`, `vlprune study NAME`.

A `Bench` is a loaded model, the questions to ask and a `Run` directory that keeps every answer. A study is a plain
function of a bench that returns a `Result`: tables, figures and the numbers behind them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: Each study by its name. Its module in this package has `study(bench) -> Result`; how many questions of each kind it
#: asks, in full and in small (`QUESTIONS`); its budgets (`KEEP`); and what it cannot do without (`NEEDS`): "images",
#: "answers", or "scenes" of the pocket world.
STUDIES = {
    "graph": "exhaustive, bipartite and random graphs: time, agreement of the kept sets, accuracy",
    "redundancy": "similarity against distance, and local entropy",
    "ablation": "GSP, QCRS and DPP on and off",
    "sensitivity": "tau, gamma and the kernel",
    "overlap": "what GSP and QCSP both keep, against the budget",
    "significance": "20 seeds: t-test, Wilcoxon, McNemar, bootstrap",
    "thresholds": "what counts as redundant, from tau 0.1 to 0.9",
    "preferences": "what four families of methods would keep, as maps",
    "errors": "who lost the evidence: GSP, QCSP, or the model",
    "defaults": "Script's settings, one changed at a time",
    "adaptive": "budgets that follow the image, against fixed ones of the same mean",
}


def get_study(name: str) -> Any:
    """The module of that study.

    >>> get_study("overlap").NEEDS
    'answers'
    """
    if name not in STUDIES:
        raise ValueError(f"name={name!r}: no such study; choose from {', '.join(STUDIES)}.")
    return import_module(f"vlprune.studies.{name}")
