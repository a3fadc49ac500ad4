"""Prefill and selection against the number of visual tokens, on a GPU: `python benchmarks/growth.py PATH.json`.

The LLM of LLaVA-1.5-7B with random weights in bf16, as CUDA graphs, reads n tokens and 64 words; and, pruned, a ninth
of them, 1,024 at most, after Script has chosen these among n features of 4,096 channels. Milliseconds with a final
synchronisation, medians. Draws PATH.png where there is matplotlib; `--plot` only draws, from an earlier run.
docs/prefill-growth.png is such a picture.
"""

import argparse
import gc
import importlib.util
import json
import math
import statistics
from pathlib import Path

import torch
from selection import TOKEN_COUNTS, make_tokens, median_ms, script_call, slope

from vlprune.cuda_graphs import GraphedModel
from vlprune.measure.architectures import get_architecture
from vlprune.measure.efficiency import describe_machine
from vlprune.measure.latency import Clock
from vlprune.show.style import COLORS, DPI, SMALL_POINTS, add_legend, dress, new_figure

TEXT_TOKENS = 64
#: What is drawn: title, colour, marker.
LINES = {
    "whole_ms": ("prefill of n tokens", COLORS[1], "s"),
    "pruned_ms": ("selection, then prefill of k", COLORS[0], "o"),
    "selection_ms": ("selection of k", COLORS[4], "^"),
}


def prefill_ms(model, tokens: int, repeats: int) -> float:
    """Median milliseconds of the prefill of so many tokens."""
    ids = torch.randint(10, 30_000, (1, tokens), device=model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 1, "do_sample": False}
    times = []
    with GraphedModel(model):
        for i in range(repeats + 2):  # the first captures
            with Clock(model) as clock:
                model.generate(**inputs)
            if i >= 2:
                times.append(1000 * clock.latency.prefill)
    gc.collect()
    torch.cuda.empty_cache()
    return statistics.median(times)


def fit_exponent(points: list[dict], name: str) -> float:
    """Slope of log time over log n, by least squares over the upper half of the points."""
    return slope([(math.log(point["n"]), math.log(point[name])) for point in points[len(points) // 2 - 1 :]])


def measure_growth(repeats: int) -> dict:
    """Measure and print all sizes; returns the figures."""
    torch.manual_seed(0)
    model, points = get_architecture("llava-1.5-7b").build("cuda"), []
    for n in TOKEN_COUNTS:
        k = min(n // 9, 1024)
        x, r = make_tokens(1, n, 4096, "cuda")
        point = {"n": n, "k": k, "selection_ms": median_ms(script_call(x, r, k, "released"), "cuda", repeats, warm=8)}
        del x, r
        point["whole_ms"] = prefill_ms(model, n + TEXT_TOKENS, repeats)
        point["pruned_ms"] = point["selection_ms"] + prefill_ms(model, k + TEXT_TOKENS, repeats)
        points.append(point)
        print(
            f"n = {n:6,}, k = {k:5,}: prefill {point['whole_ms']:8.2f} ms; pruned {point['pruned_ms']:7.2f} ms, "
            f"{point['selection_ms']:7.3f} of it selection; {point['whole_ms'] / point['pruned_ms']:5.1f}x",
            flush=True,
        )
    fitted = {name: fit_exponent(points, name) for name in LINES}
    print("exponents:", {name: round(value, 2) for name, value in fitted.items()})
    return {**describe_machine(model), "repeats": repeats, "points": points, "exponents": fitted}


def plot_growth(path: Path) -> None:
    """Draw PATH.png from the figures in PATH.json."""
    result = json.loads(path.read_text())
    points = result["points"]
    sizes = [point["n"] for point in points]
    figure = new_figure(4.6, "Time to read a prompt of n visual tokens, and of k chosen ones")
    axis = figure.subplots()
    for name, (label, color, marker) in LINES.items():
        label = f"{label}, ~ n$^{{{result['exponents'][name]:.2f}}}$"
        axis.plot(sizes, [point[name] for point in points], marker=marker, ms=4, lw=1.5, color=color, label=label)
    for point in points:
        ratio = f"{point['whole_ms'] / point['pruned_ms']:.1f}×"
        above = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": SMALL_POINTS}
        axis.annotate(ratio, (point["n"], point["whole_ms"]), **above)
    axis.set(xscale="log", yscale="log", ylim=(0.1, 9000))
    axis.set_xticks(sizes[::2], [f"{size:,}" for size in sizes[::2]])
    axis.minorticks_off()
    about = f"LLaVA-1.5-7B's LLM, CUDA graphs, {result['dtype']}, {result['device']}, torch {result['torch']}"
    x = "visual tokens n (log scale), of which k = min(n/9, 1,024) are chosen; ×: how many times faster"
    dress(axis, x=x, y="ms (log scale)", title=about)
    add_legend(figure, *axis.get_legend_handles_labels())
    figure.savefig(path.with_suffix(".png"), dpi=DPI)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path, metavar="PATH.json")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", action="store_true")
    args = parser.parse_args()
    if not args.plot:
        args.path.write_text(json.dumps(measure_growth(args.repeats), indent=1))
    if args.plot or importlib.util.find_spec("matplotlib"):
        plot_growth(args.path)


if __name__ == "__main__":
    main()
