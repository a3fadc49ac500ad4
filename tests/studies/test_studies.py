"""Every study in its small setting: what it writes, and whether its numbers are what they claim to be."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.support.evaluation_runs import read_lines, write_questions
from vlprune.errors import UserError
from vlprune.evaluation.stats import mcnemar
from vlprune.studies import STUDIES, get_study


def check_coverage(data):
    scores = data["scores"]
    assert {cell.rpartition("@")[2] for cell in scores} == {"192", "128", "64", "32", "16"}
    for keep in (192, 16):
        lines = read_lines("run", f"random@{keep}")
        seen = [value for line in lines for value in line["all"]]
        assert scores[f"random@{keep}"]["all"]["mean"] == pytest.approx(np.mean(seen), abs=1e-3)
    assert scores["relevance_top_k@16"]["asked"]["mean"] > scores["relevance_top_k, wrong question@16"]["asked"]["mean"]
    assert data["auc"]["relevance"]["all"]["mean"] > 0.6 > data["auc"]["relevance to a wrong question"]["all"]["mean"]


def check_graph(data):
    (found,) = data.values()
    assert found["exhaustive"]["iou"] == found["script exhaustive"]["iou"] == 1
    kept = {
        name: [set(line["kept"]) for line in read_lines("run", f"{name}@0.1")] for name in ("exhaustive", "bipartite")
    }
    wanted = np.mean([len(a & b) / len(a | b) for a, b in zip(*kept.values())])
    assert found["bipartite"]["iou"] == pytest.approx(wanted)
    assert found["random tokens"]["iou"] < found["bipartite"]["iou"] < 1
    assert all(found[name]["seconds"] > 0 for name in ("exhaustive", "bipartite", "random halves"))
    right = {name: [line["right"] for line in read_lines("run", f"{name}@0.1")] for name in found}
    for name in ("graph, a quarter random", "random in the graph's quarter"):
        assert tuple(found[name][key] for key in ("lost", "won", "p")) == mcnemar(right["bipartite"], right[name])
    ordinary = found["graph, half random"]["iou"]
    assert found["random tokens"]["iou"] < ordinary < found["graph, a quarter random"]["iou"]


def check_redundancy(data):
    assert data["by_distance"]["1"] > data["by_distance"]["8"]
    assert data["above_half"]["next to each other"] > data["above_half"]["random, farther apart"]
    assert data["correlation"]["component of the image"]["pearson"] < -0.2


def check_ablation(data):
    assert len(data["scores"]) == 1 + 2 * 9
    plain, root = data["scores"]["GSP + DPP@16"], data["scores"]["GSP + QCRS + DPP, kernel L@16"]
    assert plain["entering"] == root["entering"] == 16
    assert data["scores"]["GSP + QCRS + DPP@16"]["entering"] == 16


def check_sensitivity(data):
    assert len(data["scores"]) == 1 + 1 + 4 + 4 + 1
    assert "tau=0.3@64" not in data["scores"]  # the default, which is asked once


def check_overlap(data):
    assert list(data) == ["192", "128", "64", "32", "16"]
    for keep, one in data.items():
        lines = read_lines("run", f"script@{keep}")
        assert one["share"] == pytest.approx(np.mean([line["both"] / int(keep) for line in lines]))
        assert one["chance"] == pytest.approx(int(keep) / 576)
        assert one["interval"][0] <= one["share"] <= one["interval"][1]


def check_significance(data):
    found = data["32"]
    assert set(found) == {"script", "random", "dpp_only"}
    right = {name: {line["q"]: line["right"] for line in read_lines("run", f"{name}@32")} for name in found}
    assert {q // 100_000 for q in right["script"]} == {0, 1, 2, 3}
    for name, one in found.items():
        assert len(one["seeds"]) == 4
        assert one["mean"] == pytest.approx(np.mean(list(right[name].values())))
        pairs = mcnemar([right["script"][q] for q in right[name]], list(right[name].values()))
        assert tuple(one["mcnemar"].values()) == pairs
        assert one["difference"] == pytest.approx((pairs[0] - pairs[1]) / len(right[name]))


def check_thresholds(data):
    for column in ("redundant", "with_an_edge", "edges"):
        values = [one[column] for one in data.values()]
        assert values == sorted(values, reverse=True)
    assert data["0.1"]["redundant"] > data["0.9"]["redundant"]
    assert data["0.9"]["tower"] != {name: value for name, value in data["0.9"].items() if name != "tower"}


def check_envelope(data):
    assert list(data) == ["random", "neighbours", "greedy"]
    assert all(one["largest_excess"] < 1e-9 for one in data.values())
    assert data["greedy"]["determinant"] > data["random"]["determinant"] > data["neighbours"]["determinant"]
    assert data["greedy"]["sets"] == 2


def check_preferences(data):
    assert len(data["agreement"]) == 15
    assert set(data["on_target"]) == {"attention", "relevance", "redundancy", "divergence", "qcsp", "script"}
    assert data["on_target"]["relevance"][0] > data["on_target"]["relevance"][2]  # better than chance


def check_errors(data):
    for keep, one in data.items():
        wrong = [line for line in read_lines("run", f"script@{keep}") if not line["right"]]
        assert one["wrong"] == len(wrong) == sum(one["causes"].values())
        by_kind = Counter()
        for counts in one["kinds"].values():
            by_kind.update(counts)
        assert {name: count for name, count in by_kind.items() if count} == one["causes"]


def check_defaults(data):
    scores = data["scores"]
    assert {cell.rpartition("@")[2] for cell in scores} == {"64", "16"}
    assert len(scores) == 2 * 24
    assert all(one["entering"] == float(cell.rpartition("@")[2]) for cell, one in scores.items())
    usual = {line["q"]: line["right"] for line in read_lines("run", "default@16")}
    other = {line["q"]: line["right"] for line in read_lines("run", "kernel s@16")}
    pairs = mcnemar([usual[q] for q in other], list(other.values()))
    assert tuple(scores["kernel s@16"][name] for name in ("lost", "won", "p")) == pairs
    same = [read_lines("run", f"{name}@16") for name in ("default", "relevance from CLIP, sign +1")]
    assert same[0] == same[1]  # which the pocket model's encoder says of itself


def check_adaptive(data):
    scores = data["scores"]
    for keep in (64, 32, 16, 8):
        fixed, own = scores[f"fixed@{keep}"], scores[f"adaptive@{keep}"]
        assert fixed["entering"] == keep
        assert 0.4 * keep < own["entering"] < 2.5 * keep  # few scenes, so the mean is only near
        assert 0 < own["share"] < 1
    counts = {line["entering"] for line in read_lines("run", "adaptive@16")}
    assert len(counts) > 1
    assert counts <= set(range(4, 65))


def check_trust(data):
    assert list(data["trust"]) == ["clip +1", "clip -1", "llm +1", "llm -1"]
    for source in ("clip", "llm"):
        evidence = [line["evidence"] for line in read_lines("run", f"evidence {source}")]
        assert data["trust"][f"{source} +1"]["mean"] == pytest.approx(np.mean(evidence))
    assert list(data["scores"]) == ["64", "16"]
    assert all(len(scores) == 1 + 2 * 4 for scores in data["scores"].values())


def check_tower(data):
    scores = data["scores"]
    merges = ("0.0", "0.1", "0.25", "0.5")
    assert list(scores) == [f"{name}, merge {merge}" for name in ("all tokens", "script@64") for merge in merges]
    shares = [scores[f"script@64, merge {merge}"]["operations"] for merge in merges]
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)
    for name, tokens in (("all tokens", 576), ("script@64", 64)):
        right = [[line["right"] for line in read_lines("run", f"{name}, merge {merge}")] for merge in merges]
        for merge, found in zip(merges, right):
            one = scores[f"{name}, merge {merge}"]
            assert one["entering"] == tokens
            assert tuple(one[key] for key in ("lost", "won", "p")) == mcnemar(right[0], found)


@pytest.mark.parametrize("name", STUDIES)
def test_small(program, monkeypatch, name):
    pytest.importorskip("scipy")
    monkeypatch.setattr("vlprune.show.style.DPI", 40)  # of pictures that are only to be there
    monkeypatch.setattr("vlprune.studies.coverage.PICTURES", 1)
    monkeypatch.setattr("vlprune.studies.adaptive.FIT_QUESTIONS", (100, 2))
    count = 1 if get_study(name).NEEDS == "answers" else 2  # 1: all are about one scene
    code, out, err = program("study", name, "--small", "--questions", count, "--out", "run")
    assert code == 0, err
    found = json.loads(Path("run/result.json").read_text())
    globals()[f"check_{name}"](found["data"])
    text = Path("run/result.md").read_text()
    of_images = get_study(name).NEEDS in ("images", "photographs")
    asked = "2 images" if of_images else f"{count * 4 ** (name == 'significance')} questions"
    notice = f"A small run: {asked}" + " of each kind" * ("questions" in asked) + "; for a look, not for a claim."
    assert found["notice"] == notice
    assert out.startswith(notice + "\n")
    assert text.splitlines()[2] == f"**{notice}**"
    cells = [cell for table in found["tables"] for row in table["rows"] for cell in row]
    intervals = [ends.split(", ") for cell in cells for ends in re.findall(r"\[(.+)\]", cell)]
    assert [ends for ends in intervals if ends[0] == ends[1]] == []
    assert bool(intervals) == (get_study(name).NEEDS != "images" and name != "preferences")
    for table in found["tables"]:
        assert table["title"] in out
        assert table["rows"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
        assert all("| " + " | ".join(row) + " |" in text for row in table["rows"])
    for figure in found["figures"]:
        assert Path("run", figure).read_bytes()[:4] == b"\x89PNG"
        assert f"]({figure})" in text


def test_every_study_has_what_a_study_has():
    for name in STUDIES:
        study = get_study(name)
        assert study.NEEDS in ("images", "answers", "scenes", "boxes", "photographs")
        assert study.QUESTIONS[0] > study.QUESTIONS[1] >= 5  # enough to say something
        assert bool(study.KEEP) == (study.NEEDS != "images")
        assert callable(study.study)
    with pytest.raises(ValueError, match="no such study"):
        get_study("grpah")


def test_refusals(program, tmp_path):
    code, _, err = program("study", "grpah")
    assert (code, err) == (2, "vlprune: study grpah: no such study; did you mean 'graph'?\n")
    code, _, err = program("study", "adaptive", "--data", write_questions(tmp_path))
    assert code == 2
    assert "pocket world" in err
    code, _, err = program("study", "errors", "--data", write_questions(tmp_path))
    assert code == 2
    assert "line 1: it needs 'boxes', around what is asked about, in pixels: [[left, top, right, bottom], ...]" in err
    code, _, err = program("study", "significance", "--data", write_questions(tmp_path))
    assert code == 2
    assert "40 at least" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("redundancy", []),
        ("thresholds", []),
        ("envelope", []),
        ("ablation", ["--keep", 4]),
        ("graph", ["--keep", 4]),
        ("overlap", ["--keep", "8,4"]),
        ("preferences", ["--keep", 4]),
        ("trust", ["--keep", 4]),
        ("tower", ["--keep", 4]),
    ],
)
def test_on_another_model_and_data(program, tmp_path, checkpoint, name, words):
    data = write_questions(tmp_path)
    if get_study(name).NEEDS == "images":
        data = tmp_path
    code, _, err = program("study", name, "--small", "--model", checkpoint, "--data", data, *words, "--out", "run")
    assert code == 0, err
    assert json.loads(Path("run/result.json").read_text())["tables"][0]["rows"]


def test_only_small_runs_are_marked(program, tmp_path):
    data = write_questions(tmp_path)
    words = ("study", "overlap", "--data", data, "--keep", "16")
    assert program(*words, "--small")[1].startswith("A small run: 6 questions; for a look, not for a claim.\n")
    assert "A small run" not in program(*words)[1]
    assert json.loads(Path("runs/overlap-data/result.json").read_text())["notice"] == ""
    assert program("report", "runs/overlap-data", "runs/overlap-data-small")[0] == 0
    page = Path("report.html").read_text()
    assert page.count("A small run") == page.count('class="notice"') == 1


def test_a_small_run_asks_as_many_as_its_study_says(program):
    _, small = get_study("thresholds").QUESTIONS
    assert program("study", "thresholds", "--small")[1].startswith(f"A small run: {small} images; ")


def test_small_and_full_runs_have_folders_of_their_own(program):
    """Also where a study has no budgets."""
    assert program("study", "thresholds", "--questions", 1)[0] == 0
    assert program("study", "thresholds", "--questions", 1, "--small")[0] == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["thresholds", "thresholds-small"]


def test_scipy_is_asked_for_before_anything_is_done(program, monkeypatch):
    def missing():
        raise UserError("this study needs scipy: pip install 'vlprune[studies]'.")

    monkeypatch.setattr("vlprune.studies.significance.import_scipy_stats", missing)
    code, _, err = program("study", "significance", "--small", "--out", "run")
    assert code == 2
    assert err.splitlines()[-1] == "vlprune: this study needs scipy: pip install 'vlprune[studies]'."
    assert not list(Path("run/answers").iterdir())
