"""The paper's numbers: whole, consistent among themselves, and the errata that docs/errata.md prints."""

import re
from pathlib import Path

import pytest

from vlprune.evaluation import reference_methods
from vlprune.measure.flops import LLMShape, paper_macs
from vlprune.methods import list_methods
from vlprune.studies import ablation, get_study, paper, sensitivity

ERRATA = Path(__file__).parents[2] / "docs" / "errata.md"
VICUNA_7B = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)
VICUNA_13B = LLMShape(layers=40, width=5120, inner=13824, heads=40, kv_heads=40, head_width=128, vocabulary=32064)
#: Rows and columns of each table, averages included.
SIZES = {
    "llava-1.5-7b": (31, 12),
    "llava-next-7b": (19, 12),
    "llava-1.5-13b": (19, 12),
    "llava-next-13b": (19, 12),
    "video": (13, 11),
    "internvl3-8b": (7, 10),
    "efficiency": (8, 9),
    "ablation": (7, 6),
    "graph": (3, 5),
    "sensitivity": (13, 12),
    "overlap": (5, 11),
    "significance": (6, 4),
}
ACCURACY = list(SIZES)[:6]


def teraflops(shape, tokens):
    return round(paper_macs(shape, tokens) / 1e12, 3)


def test_every_table_is_there_and_whole():
    assert {name: (len(one.values), len(one.columns)) for name, one in paper.tables().items()} == SIZES
    for one in paper.tables().values():
        assert re.fullmatch(r"tab:[\w-]+", one.label)
        assert one.title
        assert one.model
        assert one.unit
    for name in ACCURACY:
        one = paper.table(name)
        methods = {row for row, _ in one.values} - {paper.ALL_TOKENS}
        assert len(one.values) == 1 + len(methods) * len(one.budgets)
        assert one.value(paper.ALL_TOKENS, "relative") == 100
        assert max(one.budgets) < one.tokens


def test_values_that_anybody_can_look_up():
    assert paper.table("llava-1.5-7b").value("script", "mme", 16) == 1258.55
    assert paper.table("llava-next-7b").value("divprune", "vizwiz_vqa_val", 320) == 54.97
    assert paper.table("llava-1.5-13b").value("trim", "mmvet", 32) == 26.34
    assert paper.table("llava-next-13b").value("script", "pope", 160) == 88.83
    assert paper.table("video").value("sparsevlm", "videomme_long", 16) == 46.22
    assert paper.table("internvl3-8b").value("fastv", "mme", 256) == 2348.31
    assert paper.table("efficiency").value("script without DPP", "f1") == 86.5
    assert paper.table("overlap").value("script", "pope", 16) == 6.82
    assert paper.table("significance").value("trim", "t") == 8.96e-35


def test_names_are_ours():
    assert paper.ALL_TOKENS == reference_methods.ALL_TOKENS
    for name in (*ACCURACY, "efficiency", "significance"):
        assert set(paper.table(name).rows) - {paper.ALL_TOKENS, "script without DPP"} <= set(list_methods())
    parts = {ablation._title(*some) for some in ablation.COMBINATIONS}
    assert set(paper.table("ablation").rows) <= parts | {paper.ALL_TOKENS}
    settings = {f"{name}={value}" for name, values in sensitivity.VALUES.items() for value in values}
    assert set(paper.table("sensitivity").rows) - {paper.ALL_TOKENS} == settings
    assert set(paper.table("graph").rows) <= set(get_study("graph").PAIRS)


def test_what_two_tables_share_is_the_same():
    accuracy, parts, settings = (paper.table(name) for name in ("llava-1.5-7b", "ablation", "sensitivity"))
    script = accuracy.row("script", 64)
    for default in ("tau=0.3", "gamma=5.0", "kernel=s_prime"):
        assert settings.row(default) == script
    assert settings.row(paper.ALL_TOKENS) == accuracy.row(paper.ALL_TOKENS)
    for row, keep in (("GSP + QCRS + DPP", 16), (paper.ALL_TOKENS, 576)):
        name = "script" if keep == 16 else row
        assert {task: parts.value(row, task) for task in parts.benchmarks} == {
            task: accuracy.value(name, task, keep) for task in parts.benchmarks
        }


def test_averages_are_those_of_the_rows_but_for_the_errata():
    found = paper.misprinted_averages()
    assert len(found) == 30
    assert (
        sum(len(one.values) * (1 + ("relative" in one.columns)) for one in paper.tables().values() if one.benchmarks)
        > 250
    )
    assert not {one.table for one in found} & {"sensitivity", "overlap"}  # so their order of columns is the one we have
    text = ERRATA.read_text(encoding="utf-8")
    for one in found:
        if abs(one.printed - one.computed) >= 0.09:
            printed = f"{one.printed:.2f}"
            cells = [f"| {some} | {one.computed:.2f} |" for some in (printed, printed.removesuffix("0"))]
            assert any(cell in text for cell in cells), one


def test_flops():
    seven, thirteen = paper.table("llava-1.5-7b"), paper.table("llava-1.5-13b")
    for keep, printed in seven.flops.items():
        assert printed == pytest.approx(paper_macs(VICUNA_7B, int(keep)) / 1e12, abs=0.001)
    for keep in thirteen.flops:
        assert thirteen.flops[keep] == seven.flops[keep]  # the 7B model's
    assert [teraflops(VICUNA_13B, n) for n in (576, 128, 64, 32)] == [7.444, 1.631, 0.814, 0.406]
    following = paper.table("llava-next-7b")
    assert following.flops[2880] == teraflops(VICUNA_7B, 2880)
    for keep in following.budgets:
        assert following.flops[keep] == pytest.approx(following.flops[2880] * keep / 2880, abs=0.001)  # linear
        assert paper.table("llava-next-13b").flops[keep] == following.flops[keep]
    assert [teraflops(VICUNA_7B, n) for n in (640, 320, 160)] == [4.252, 2.099, 1.043]
    assert [teraflops(VICUNA_13B, n) for n in (640, 320, 160, 2880)] == [8.288, 4.102, 2.041, 39.938]
    efficiency = paper.table("efficiency")
    assert efficiency.value(paper.ALL_TOKENS, "tflops") == round(2 * paper_macs(VICUNA_7B, 2880) / 1e12, 1)
    assert efficiency.value("script", "tflops") == 4.1 != round(2 * paper_macs(VICUNA_7B, 320) / 1e12, 1) == 4.2
    assert efficiency.value(paper.ALL_TOKENS, "kv_mb") == 2880 * VICUNA_7B.kv_values_per_token * 2 / 2**20


def test_ratios():
    cost, wrong = paper.table("efficiency"), {}
    for quantity, ratio in (("tflops", "flops_ratio"), ("prefill_ms", "prefill_ratio"), ("decode_ms", "decode_ratio")):
        for row in cost.rows:
            follows = cost.value(paper.ALL_TOKENS, quantity) / cost.value(row, quantity)
            if abs(follows - cost.value(row, ratio)) > 0.051 + 0.15 * (ratio == "flops_ratio"):
                wrong[row, quantity] = round(follows, 1)
    assert wrong == {
        ("fastv", "decode_ms"): 1.3,
        ("sparsevlm", "decode_ms"): 1.2,
        ("visionzip", "prefill_ms"): 6.5,
        ("divprune", "prefill_ms"): 6.5,
        ("script without DPP", "prefill_ms"): 6.5,
        ("script", "prefill_ms"): 7.0,
    }
    graph = paper.table("graph")
    assert [round(100 / graph.value(row, "milliseconds"), 2) for row in ("bipartite", "random tokens")] == [2.86, 2.94]
    assert [graph.value(row, "speedup") for row in ("bipartite", "random tokens")] == [2.81, 2.82]
    assert round(0.1 * 0.1 / (0.2 - 0.1 * 0.1), 2) == 0.05 < graph.value("random tokens", "iou")
    assert [round(100 * (1 - m / 576), 1) for m in (16, 32)] == [97.2, 94.4]


def test_what_the_text_says_of_tables():
    small, following = paper.table("llava-1.5-7b"), paper.table("llava-next-7b")
    at_192 = sorted((row for row, keep in small.values if keep == 192), key=lambda row: -small.value(row, "mean", 192))
    assert at_192[:2] == ["script", "sparsevlm"]
    assert sorted(at_192, key=lambda row: -small.mean(row, 192))[2] == "visionzip"
    for keep in small.budgets:
        ahead = [
            task
            for task in small.benchmarks
            if any(small.value(row, task, keep) > small.value("script", task, keep) for row in small.rows[1:])
        ]
        assert 2 <= len(ahead) <= 4
        assert "vizwiz_vqa_val" in ahead
    assert small.value("script", "relative", 64) == 96.88 != following.value("script", "relative", 320) == 97.78
    thirteen = paper.table("llava-1.5-13b")
    assert thirteen.value("sparsevlm", "mean", 128) > thirteen.value("script", "mean", 128)
    runs = paper.table("significance")
    gap = {row: abs(runs.value(row, "mme") - following.value(row, "mme", 160)) for row in runs.rows}
    assert gap.pop("script") / runs.value("script", "std") == pytest.approx(68, abs=0.5)
    assert 6 < min(gap.values()) < max(gap.values()) < 38
    assert [runs.value(row, "wilcoxon") for row in runs.rows[:-1]] == pytest.approx([2**-20] * 5, rel=1e-3)
    kernels = paper.table("sensitivity")
    assert [t for t in kernels.benchmarks if kernels.value("kernel=s", t) > kernels.value("kernel=s_prime", t)] == [
        "gqa",
        "vqav2_val",
    ]


def test_refusals():
    with pytest.raises(ValueError, match=r"name='llava': no table of the paper; choose from llava-1\.5-7b, "):
        paper.table("llava")
    with pytest.raises(ValueError, match=r"row='script', keep=None: .* has all tokens at 576, fastv at 192, "):
        paper.table("llava-1.5-7b").value("script", "pope")
    with pytest.raises(ValueError, match=r"column='seed': .* has gqa, "):
        paper.table("llava-1.5-7b").value("script", "seed", 64)
    with pytest.raises(ValueError, match="table 'graph' has no averages"):
        paper.table("graph").mean("bipartite")
