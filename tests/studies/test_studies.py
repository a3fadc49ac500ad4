"""Every study in its small setting: what it writes, and whether its numbers are what they claim to be."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.test_eval import lines_of, picture_file
from vlprune import Script
from vlprune.errors import UserError
from vlprune.evaluation.image_tokens import Looked, near_similarity
from vlprune.evaluation.questions import pocket_items
from vlprune.evaluation.stats import mcnemar
from vlprune.studies import STUDIES, get_study
from vlprune.studies.ablation import Parts
from vlprune.studies.redundancy import _by_distance, image_entropy, own_entropy
from vlprune.types import Query, TokenView


def check_graph(data):
    (found,) = data.values()
    assert found["exhaustive"]["iou"] == found["script exhaustive"]["iou"] == 1
    kept = {
        name: [set(line["kept"]) for line in lines_of("run", f"{name}@0.1")] for name in ("exhaustive", "bipartite")
    }
    wanted = np.mean([len(a & b) / len(a | b) for a, b in zip(*kept.values())])
    assert found["bipartite"]["iou"] == pytest.approx(wanted)
    assert found["random tokens"]["iou"] < found["bipartite"]["iou"] < 1
    assert all(found[name]["seconds"] > 0 for name in ("exhaustive", "bipartite", "random halves"))


def check_redundancy(data):
    assert data["by_distance"]["1"] > data["by_distance"]["8"]
    assert data["above_half"]["next to each other"] > data["above_half"]["random, farther apart"]
    assert data["correlation"]["component of the image"]["pearson"] < -0.2


def check_ablation(data):
    assert len(data["scores"]) == 1 + 2 * 8
    assert data["scores"]["GSP + QCRS + DPP@16"]["entering"] == 16


def check_sensitivity(data):
    assert len(data["scores"]) == 1 + 1 + 4 + 4 + 1
    assert "tau=0.3@64" not in data["scores"]  # the default, which is asked once


def check_overlap(data):
    assert list(data) == ["192", "128", "64", "32", "16"]
    for keep, one in data.items():
        lines = lines_of("run", f"script@{keep}")
        assert one["share"] == pytest.approx(np.mean([line["both"] / int(keep) for line in lines]))
        assert one["chance"] == pytest.approx(int(keep) / 576)
        assert one["interval"][0] <= one["share"] <= one["interval"][1]


def check_significance(data):
    found = data["32"]
    assert set(found) == {"script", "random", "dpp_only", "script, the paper's text"}
    right = {name: {line["q"]: line["right"] for line in lines_of("run", f"{name}@32")} for name in found}
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


def check_preferences(data):
    assert len(data["agreement"]) == 6
    assert data["on_target"]["relevance"][0] > data["on_target"]["relevance"][2]  # better than chance


def check_errors(data):
    for keep, one in data.items():
        wrong = [line for line in lines_of("run", f"script@{keep}") if not line["right"]]
        assert one["wrong"] == len(wrong) == sum(one["causes"].values())
        by_kind = Counter()
        for counts in one["kinds"].values():
            by_kind.update(counts)
        assert {name: count for name, count in by_kind.items() if count} == one["causes"]


def check_defaults(data):
    scores = data["scores"]
    assert {cell.rpartition("@")[2] for cell in scores} == {"64", "16"}
    assert len(scores) == 2 * 25
    assert all(one["entering"] == float(cell.rpartition("@")[2]) for cell, one in scores.items())
    usual = {line["q"]: line["right"] for line in lines_of("run", "default@16")}
    other = {line["q"]: line["right"] for line in lines_of("run", "kernel s@16")}
    pairs = mcnemar([usual[q] for q in other], list(other.values()))
    assert tuple(scores["kernel s@16"][name] for name in ("lost", "won", "p")) == pairs
    same = [lines_of("run", f"{name}@16") for name in ("default", "relevance from CLIP, sign +1")]
    assert same[0] == same[1]  # which the pocket model's encoder says of itself


def check_adaptive(data):
    scores = data["scores"]
    for keep in (64, 32, 16, 8):
        fixed, own = scores[f"fixed@{keep}"], scores[f"adaptive@{keep}"]
        assert fixed["entering"] == keep
        assert 0.4 * keep < own["entering"] < 2.5 * keep  # few scenes, so the mean is only near
        assert 0 < own["share"] < 1
    counts = {line["entering"] for line in lines_of("run", "adaptive@16")}
    assert len(counts) > 1
    assert counts <= set(range(4, 65))


@pytest.mark.parametrize("name", STUDIES)
def test_small(program, name):
    pytest.importorskip("scipy")
    code, out, err = program("study", name, "--small", "--out", "run")
    assert code == 0, err
    found = json.loads(Path("run/result.json").read_text())
    globals()[f"check_{name}"](found["data"])
    text = Path("run/result.md").read_text()
    for table in found["tables"]:
        assert table["title"] in out
        assert table["rows"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
        assert all("| " + " | ".join(row) + " |" in text for row in table["rows"])
    for figure in found["figures"]:
        assert Path("run", figure).read_bytes()[:4] == b"\x89PNG"
        assert f"]({figure})" in text


def test_every_study_says_what_it_needs():
    for name in STUDIES:
        study = get_study(name)
        assert study.NEEDS in ("images", "answers", "scenes")
        assert study.QUESTIONS[0] > study.QUESTIONS[1] >= 1
    with pytest.raises(ValueError, match="no such study"):
        get_study("grpah")


def test_refusals(program, tmp_path):
    code, _, err = program("study", "grpah")
    assert (code, err) == (2, "vlprune: study grpah: no such study; did you mean 'graph'?\n")
    code, _, err = program("study", "errors", "--data", picture_file(tmp_path))
    assert code == 2
    assert "pocket world" in err
    code, _, err = program("study", "significance", "--data", picture_file(tmp_path))
    assert code == 2
    assert "40 at least" in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("redundancy", []),
        ("thresholds", []),
        ("ablation", ["--keep", 4]),
        ("graph", ["--keep", 4]),
        ("overlap", ["--keep", "8,4"]),
        ("preferences", ["--keep", 4]),
    ],
)
def test_on_another_model_and_data(program, tmp_path, checkpoint, name, words):
    data = picture_file(tmp_path)
    if get_study(name).NEEDS == "images":
        data = tmp_path
    code, _, err = program("study", name, "--small", "--model", checkpoint, "--data", data, *words, "--out", "run")
    assert code == 0, err
    assert json.loads(Path("run/result.json").read_text())["tables"][0]["rows"]


def test_scipy_is_asked_for_before_anything_is_done(program, monkeypatch):
    def missing():
        raise UserError("this study needs scipy: pip install 'vlprune[studies]'.")

    monkeypatch.setattr("vlprune.studies.significance.scipy_stats", missing)
    code, _, err = program("study", "significance", "--small", "--out", "run")
    assert (code, err) == (2, "vlprune: this study needs scipy: pip install 'vlprune[studies]'.\n")
    assert not list(Path("run/answers").iterdir())


# --- the mathematics of single studies, on tensors ----------------------------------------------------------------


def view_and_query():
    torch.manual_seed(0)
    tokens = torch.randn(2, 36, 8)
    return TokenView(tokens, (6, 6)), Query(tokens, torch.randn(2, 1, 8), 1, "llm", ("?", "?"))


def test_all_parts_together_are_script():
    view, query = view_and_query()
    for keep in (3, 9, 20):
        script = Script(keep=keep, fusion="supplement")
        assert torch.equal(Parts(keep).select(view, query).kept, script.select(view, query).kept)
        default = Parts(keep, gsp=False).select(view, query)
        assert torch.equal(default.kept, Script(keep=keep, fill=0.0).select(view, query).kept)


def test_each_part_changes_what_is_kept():
    view, query = view_and_query()
    ways = [(g, q, d) for g in (False, True) for q in (False, True) for d in (False, True) if g or q or d]
    kept = [Parts(9, gsp=g, qcrs=q, dpp=d).select(view, query).kept for g, q, d in ways]
    assert all(one.shape == (2, 9) for one in kept)
    assert len({tuple(one.flatten().tolist()) for one in kept}) == len(ways)
    with pytest.raises(ValueError, match="all off"):
        Parts(9, gsp=False, qcrs=False, dpp=False).select(view, query)


def looked(features, grid):
    return Looked(pocket_items("test", 1)[0], features, grid)


def test_similarity_by_distance_is_what_it_says():
    torch.manual_seed(1)
    one = looked(torch.randn(6, 5), (2, 3))
    unit = torch.nn.functional.normalize(one.features, dim=1)
    pairs = {}
    for a in range(6):
        for b in range(a):
            far = abs(a // 3 - b // 3) + abs(a % 3 - b % 3)
            pairs.setdefault(far, []).append(float(unit[a] @ unit[b]))
    found = _by_distance([one])
    assert {d: count for d, (_, count) in found.items()} == {d: len(values) for d, values in pairs.items()}
    for d, values in pairs.items():
        assert found[d][0] == pytest.approx(np.mean(values), abs=1e-6)


def test_entropy_is_low_where_neighbours_agree():
    """Left half: one and the same token; right half: noise."""
    torch.manual_seed(2)
    features = torch.randn(8, 8, 6)
    features[:, :4] = features[0, 0]
    one = looked(features.view(64, 6), (8, 8))
    for entropy in (image_entropy(one), own_entropy(one)):
        grid = entropy.view(8, 8)
        assert grid[:, :3].max() < 1e-4  # one bin only
        assert grid[1:-1, 6].min() > 1
        assert grid.max() <= np.log(9) + 1e-4
    similar = near_similarity(one).view(8, 8)
    assert similar[:, :3].min() > 0.999
    assert similar[:, 6].max() < 0.9


def test_constant_images_have_no_entropy():
    one = looked(torch.ones(16, 3), (4, 4))
    assert image_entropy(one).max() < 1e-4
    assert own_entropy(one).max() < 1e-4
