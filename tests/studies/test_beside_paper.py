"""The paper beside a run: which way each goes."""

import json
from pathlib import Path

from vlprune.evaluation.result import PAPER_TITLE
from vlprune.studies import STUDIES
from vlprune.studies.beside_paper import COMPARISONS, beside_paper


def rows_of(study, data):
    (found,) = beside_paper(study, data, "a model")
    assert found.title == PAPER_TITLE
    assert "Here: a model." in found.note
    return {quantity: cells for quantity, *cells in found.rows}


def test_only_studies_and_eval_are_compared():
    assert set(COMPARISONS) - {"eval"} == set(STUDIES) & set(COMPARISONS)
    assert beside_paper("adaptive", {}, "a model") == []  # which the paper leaves to later work


def test_ablation_compares_signs_at_the_smallest_budget():
    names = ["none (random)", "GSP", "QCRS", "GSP + QCRS", "QCRS + DPP", "GSP + QCRS + DPP"]
    relative = dict(zip(names, [0.9, 0.5, 0.7, 0.8, 0.99, 0.99]))
    data = {"scores": {f"{name}@{keep}": {"relative": value} for name, value in relative.items() for keep in (64, 16)}}
    data["scores"]["all tokens"] = {"relative": 1.0}
    assert rows_of("ablation", data) == {
        "GSP alone, at 16": ["+2.85", "-40.00", "no"],
        "QCRS alone, at 16": ["+22.41", "-20.00", "no"],
        "GSP added to QCRS, at 16": ["+0.03", "+10.00", "yes"],
        "DPP added to QCRS, at 16": ["+5.05", "+29.00", "yes"],
        "GSP added to QCRS + DPP, at 16": ["+1.00", "+0.00", "no difference here"],
    }


def test_graph():
    one = {"exhaustive": (2.0, 1.0, 0.6), "bipartite": (1.0, 0.7, 0.5), "random tokens": (None, 0.1, 0.9)}
    data = {"0.1": {name: dict(zip(("seconds", "iou", "accuracy"), values)) for name, values in one.items()}}
    assert rows_of("graph", data) == {
        "bipartite faster than exhaustive": ["2.81×", "2.00×", "yes"],
        "IoU, bipartite (random tokens)": ["0.93 (0.52)", "0.70 (0.10)", "yes"],
        "right, bipartite less exhaustive, at 0.1": ["-0.65", "-10.00", "yes"],
        "right, bipartite less random tokens, at 0.1": ["+5.86", "-40.00", "no"],
    }


def test_redundancy_asks_whether_similarity_rises_again():
    def found(far):
        data = {"by_distance": {"1": 0.6, "15": 0.4, "30": far}, "above_half": {"near": 0.5, "random": 0.3}}
        return rows_of("redundancy", data | {"correlation": {"component": {"pearson": -0.5}}})

    assert found(0.45)["cosine, from distance 15 to 30"] == ["rises", "+0.050", "yes"]
    assert found(0.35)["cosine, from distance 15 to 30"] == ["rises", "-0.050", "no"]
    assert found(0.35)["entropy and cosine, component"] == ["negative", "r -0.50", "yes"]


def test_eval_takes_the_table_with_as_many_tokens():
    cells = {
        "script@64": 0.9,
        "fastv@64": 0.95,
        "random@64": 0.99,
        "fastv@48": 0.9,
        "script@320": 0.9,
        "fastv@320": 0.8,
    }
    cells["all tokens"] = 1.0
    data = {"scores": {name: {"relative": value, "entering": 576.0} for name, value in cells.items()}}
    assert rows_of("eval", data) == {"Script less fastv, at 64": ["+7.5", "-5.0", "no"]}
    data["scores"]["all tokens"]["entering"] = 2880.0
    assert rows_of("eval", data) == {"Script less fastv, at 320": ["+14.5", "+10.0", "yes"]}
    data["scores"]["all tokens"]["entering"] = 77.0
    assert beside_paper("eval", data, "a model") == []


def test_errors_and_preferences():
    found = rows_of("errors", {"16": {"wrong": 5, "causes": {"model": 1, "reading": 1, "GSP": 2, "both": 1}}})
    assert found["evidence kept, model wrong, at 16"] == ["an example", "2 of 5", "yes"]
    assert found["lost by QCSP, at 16"] == ["an example", "0 of 5", "no"]
    shares = {"attention": (0.2, 0.7, 0.1), "script": (0.1, 0.9, 0.1)}
    found = rows_of("preferences", {"on_target": shares})
    assert [cells[-1] for cells in found.values()] == ["no", "yes"]
    assert beside_paper("preferences", {"agreement": {}}, "a model") == []  # no drawn scenes, no targets


def test_in_runs_and_in_their_report(program):
    quantities = []
    for name in ("thresholds", "overlap"):
        assert program("study", name, "--small", "--questions", 1, "--out", name)[0] == 0
        last = json.loads(Path(name, "result.json").read_text())["tables"][-1]
        assert last["title"] == PAPER_TITLE
        assert "Here: pocket, drawn scenes, 6 questions about " in last["note"]
        quantities += [row[0] for row in last["rows"]]
    assert program("report", "thresholds", "overlap")[0] == 0
    page = Path("report.html").read_text()
    summary = page[: page.index('<section id="run')]
    assert [page.count(f"<td>{quantity}</td>") for quantity in quantities] == [2] * len(quantities)
    assert [summary.count(f"<td>{quantity}</td>") for quantity in quantities] == [1] * len(quantities)
    assert f" of {len(quantities)} in the same direction; " in summary
    assert program("report", "overlap", "--force")[0] == 0
    assert PAPER_TITLE not in Path("report.html").read_text().partition('<section id="run')[0]  # one run shows its own
