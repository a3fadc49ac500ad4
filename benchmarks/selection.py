"""Script's selection against a plain torch loop, on this machine: `python benchmarks/selection.py [--device cuda]`.

The baseline does what released pruning code does: it builds the n × n kernel and runs the greedy one image at a time
with a host read (`.item()`) in every step. All start from the same features and relevance and end with kept indices on
the device; the table prints medians, ratios to the baseline, and how many of the kept indices agree with it. "released"
is the greedy's own set of k, without a graph; "supplement" scores the graph too, and makes one choice more for each of
these k that the graph does not keep. "choices" is how many the greedy makes, the most of any image.
`--json PATH` writes the table too.

On a GPU features are bfloat16, and the table has the torch functions (`use_fused(False)`) beside the fused kernels, the
memory a call takes beyond its inputs, and the floor: the features read and the kernel matrix written once, or its
products if they take longer, at the rates measured in the same run, plus one exchange between programs whenever rows of
the kernel are made, which is once in as many ranks as rows are made at once, at the least.

`--growth PATH.json` times selection against n and against k instead, fits exponents, and draws PATH.png where there is
matplotlib; `--plot PATH.json` draws from an earlier run. docs/selection-growth.png is such a picture.
"""

import argparse
import importlib.util
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vlprune.selection import select_script, use_fused
from vlprune.show.style import COLORS, DPI, SMALL_POINTS, dress, new_figure

#: images, n, d and k
CPU_CASES = ((1, 576, 256, 64), (1, 576, 4096, 64), (5, 576, 4096, 64), (1, 2880, 4096, 320))
GPU_CASES = (
    (1, 576, 4096, 64),
    (5, 576, 4096, 64),
    (1, 2880, 4096, 320),
    (1, 10816, 4096, 1024),
    (1, 10816, 1024, 1024),
    (1, 10816, 3584, 2163),
)
#: n and k of `--growth`
TOKEN_COUNTS = (576, 1152, 2304, 4608, 9216, 18432, 36864, 65536)
KEEP_COUNTS = (16, 64, 256, 1024)
#: What is drawn: label, colour, marker.
LOOKS = {"plain": ("plain loop", COLORS[1], "s"), "ours": ("vlprune", COLORS[0], "o")}


def plain_loop(features: Tensor, relevance: Tensor, k: int) -> Tensor:
    """Indices (B, k) kept by the baseline, sorted."""
    kept = []
    for x, r in zip(features.float(), relevance):
        unit = torch.nn.functional.normalize(x, dim=-1)
        kernel = r[:, None] * (unit @ unit.T) * r[None, :]
        gain = kernel.diagonal().clone()
        rows = torch.zeros(k, len(x), device=x.device)
        chosen: list[int] = []
        for t in range(k):
            j = int(gain.argmax().item())
            chosen.append(j)
            rows[t] = (kernel[j] - rows[:t, j] @ rows[:t]) / torch.sqrt(gain[j] + 1e-6)
            gain = gain - rows[t] ** 2
            gain[chosen] = -torch.inf
        kept.append(torch.tensor(sorted(chosen), device=x.device))
    return torch.stack(kept)


def baseline_call(x: Tensor, r: Tensor, k: int) -> Callable[[], Tensor]:
    """A call of the baseline on these features and relevance."""
    return lambda: plain_loop(x, r, k)


def script_call(x: Tensor, r: Tensor, k: int, rule: str, tau: float = 0.3) -> Callable[[], Tensor]:
    """A call of Script's selection on these features and relevance."""
    return lambda: select_script(x, None, k, tau=tau, relevance=r, fusion=rule).kept


def make_tokens(batch: int, n: int, d: int, device: str) -> tuple[Tensor, Tensor]:
    """Features (B, n, d) around forty centres, and relevance (B, n)."""
    g = torch.Generator(device).manual_seed(0)
    centres = torch.randn(40, d, generator=g, device=device)
    which = torch.randint(40, (batch, n), generator=g, device=device)
    features = centres[which] + 0.7 * torch.randn(batch, n, d, generator=g, device=device)
    relevance = torch.rand(batch, n, generator=g, device=device)
    return features.to(torch.bfloat16 if device == "cuda" else torch.float32), relevance


def median_ms(run: Callable[[], Tensor], device: str, repeats: int, warm: int = 3) -> float:
    """Median milliseconds of a call, after `warm` calls that do not count."""
    times = []
    for i in range(repeats + warm):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= warm:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def extra_mb(run: Callable[[], Tensor]) -> float:
    """Megabytes that a call takes beyond its inputs, its first in these shapes: later ones may replay a recording."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def measure_rates() -> tuple[float, float]:
    """Bytes and bfloat16 operations a second that this GPU reaches on a large copy and a large product."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source), "cuda", 9) / 1000
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    product = median_ms(lambda: a @ a, "cuda", 9) / 1000
    return 2 * source.numel() / copy, 2 * 8192**3 / product


def floor_ms(batch: int, n: int, d: int, ranks: int, rates: tuple[float, float]) -> float:
    """Milliseconds that a selection takes at least, at the measured rates."""
    from exchange_latency import exchange_ms

    from vlprune.selection.fused.greedy import program, shares

    moved = 2 * batch * n * d + 4 * batch * n * n
    passes = max(moved / rates[0], batch * n * n * d / rates[1])  # half of 2n²d: the matrix is symmetric
    _, share = shares(batch, n, torch.device("cuda", torch.cuda.current_device()))
    _, ahead, warps = program(n, share)
    return 1000 * passes + math.ceil(ranks / ahead) * exchange_ms(math.ceil(n / share), warps=warps)


def measure_table(device: str, repeats: int) -> list[dict]:
    """Measure and print the table; returns its rows."""
    rates, rows = measure_rates() if device == "cuda" else (0.0, 0.0), []
    if device == "cuda":
        print(f"measured here: copies {rates[0] / 1e12:.2f} TB/s, bfloat16 products {rates[1] / 1e12:.0f} TFLOP/s")
    print(
        "| images | n | d | k | fusion | choices | plain loop | torch | fused | faster | extra memory | floor "
        "| × floor | same |"
    )
    print("| ---: " * 4 + "| :--- " + "| ---: " * 9 + "|")
    for batch, n, d, k in GPU_CASES if device == "cuda" else CPU_CASES:
        x, r = make_tokens(batch, n, d, device)
        want = plain_loop(x, r, k)
        base = median_ms(baseline_call(x, r, k), device, max(3, repeats // 3), warm=1)
        for rule in ("released", "supplement"):
            rows.append(measure_row(x, r, k, rule, want, base, rates, repeats))
            print_row(rows[-1])
    return rows


def measure_row(
    x: Tensor, r: Tensor, k: int, rule: str, want: Tensor, base: float, rates: tuple[float, float], repeats: int
) -> dict:
    """Figures of one fusion rule; the baseline kept `want` and took `base` milliseconds."""
    (batch, n, d), device = x.shape, x.device.type
    run = script_call(x, r, k, rule)
    with use_fused(False):
        torch_ms = median_ms(run, device, max(3, repeats // 3) if device == "cuda" else repeats, warm=1)
        right = want if rule == "released" else run()
    row = {"images": batch, "n": n, "d": d, "k": k, "fusion": rule, "loop_ms": base, "torch_ms": torch_ms}
    if device == "cuda":
        with use_fused(True):
            row["extra_mb"] = extra_mb(script_call(x, r, k, rule, tau=0.31))
            row["fused_ms"] = median_ms(run, device, repeats, warm=8)  # by then a small one is replayed in place
    with use_fused(True):
        chosen = select_script(x, None, k, relevance=r, fusion=rule)
    row["choices"] = int((chosen.order >= 0).sum(1).max())
    if device == "cuda":
        row["floor_ms"] = floor_ms(batch, n, d, row["choices"], rates)
    row["same"] = sum(len(set(a) & set(b)) for a, b in zip(chosen.kept.tolist(), right.tolist())) / right.numel()
    return row


def print_row(row: dict) -> None:
    """One line of the table."""
    base, torch_ms = row["loop_ms"], row["torch_ms"]
    line = f"{row['images']} | {row['n']:,} | {row['d']:,} | {row['k']:,} | {row['fusion']} | "
    line += f"{row['choices']:,} | {base:.1f} ms | {torch_ms:.1f} ms | "
    if "fused_ms" in row:
        best, floor = row["fused_ms"], row["floor_ms"]
        line += f"{best:.3f} ms | {base / best:.0f}× | {row['extra_mb']:.0f} MB | {floor:.3f} ms | {best / floor:.1f}"
    else:
        line += f" | {base / torch_ms:.1f}× | | |"
    print("|", line, "|", f"{row['same']:.2%}", "|", flush=True)


def measure_growth(path: Path, device: str, repeats: int) -> None:
    """Time selection against n (k a ninth of it up to 1,024, and k = 64) and against k, fit exponents, write PATH."""
    d, points = 4096 if device == "cuda" else 256, []
    sizes = TOKEN_COUNTS if device == "cuda" else TOKEN_COUNTS[:3]
    middle = 9216 if device == "cuda" else 1152
    runs = [("k = min(n/9, 1,024)", n, min(n // 9, 1024)) for n in sizes] + [("k = 64", n, 64) for n in sizes]
    runs += [(f"n = {middle:,}", middle, k) for k in KEEP_COUNTS]
    for series, n, k in runs:
        x, r = make_tokens(1, n, d, device)
        point: dict = {"series": series, "n": n, "k": k}
        if device == "cuda":
            point["ours_mb"] = extra_mb(script_call(x, r, k, "released", tau=0.31))
        point["ours_ms"] = median_ms(script_call(x, r, k, "released"), device, repeats, warm=8)
        if n <= 20_000:  # beyond, the loop's matrix alone is gigabytes
            if device == "cuda":
                point["plain_mb"] = extra_mb(baseline_call(x, r, k))
            point["plain_ms"] = median_ms(baseline_call(x, r, k), device, 3, warm=1)
        points.append(point)
        print(point, flush=True)
    result = {"machine": describe_machine(device), "channels": d, "points": points, "exponents": fit_exponents(points)}
    path.write_text(json.dumps(result, indent=1))
    for series, fitted in fit_exponents(points).items():
        print(series, {name: round(value, 2) for name, value in fitted.items()})
    if importlib.util.find_spec("matplotlib"):
        plot_growth(path)


def fit_exponents(points: list[dict]) -> dict[str, dict[str, float]]:
    """Slope of log time over log n (or log k) for each series, by least squares over the upper points."""
    fitted: dict[str, dict[str, float]] = {}
    for series in dict.fromkeys(point["series"] for point in points):
        axis = "k" if series.startswith("n") else "n"
        for name in ("ours_ms", "plain_ms"):
            found = [(math.log(p[axis]), math.log(p[name])) for p in points if p["series"] == series and name in p]
            found = found[len(found) // 2 - 1 :] if len(found) > 3 else found
            fitted.setdefault(series, {})[name] = slope(found)
    return fitted


def slope(points: list[tuple[float, float]]) -> float:
    """Slope of the line through the points, by least squares."""
    mean = [statistics.mean(column) for column in zip(*points)]
    return sum((a - mean[0]) * (b - mean[1]) for a, b in points) / sum((a - mean[0]) ** 2 for a, _ in points)


def plot_growth(path: Path) -> None:
    """Draw PATH.png from the figures in PATH.json."""
    result = json.loads(path.read_text())
    figure = new_figure(6.6, "Time and extra memory of selecting k of n tokens")
    figure.supxlabel(f"{result['machine']}, d = {result['channels']:,}", fontsize=SMALL_POINTS, color="grey")
    axes = list(figure.subplots(2, 2).flat)  # three series and memory
    for axis, series in zip(axes, result["exponents"]):
        plot_time(axis, result, series)
    first = [p for p in result["points"] if p["series"] == next(iter(result["exponents"]))]
    plot_memory(axes[-1], first)
    for axis in axes:
        ticks = [p["n"] for p in first][::2] if axis.get_xlabel() == "n" else list(KEEP_COUNTS)
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.legend(frameon=False, loc="upper left", fontsize=SMALL_POINTS)
    figure.savefig(path.with_suffix(".png"), dpi=DPI)


def plot_time(axis, result: dict, series: str) -> None:
    """Draw the times of one series, ours and the plain loop's."""
    over = "k" if series.startswith("n") else "n"
    for name, (label, color, marker) in LOOKS.items():
        found = [(p[over], p[f"{name}_ms"]) for p in result["points"] if p["series"] == series and f"{name}_ms" in p]
        label = f"{label}, ~ {over}$^{{{result['exponents'][series][f'{name}_ms']:.2f}}}$"
        axis.plot(*zip(*found), marker=marker, ms=4, lw=1.5, color=color, label=label)
    axis.set(xscale="log", yscale="log", ylim=(0.1, 3000))
    dress(axis, x=over, y="ms (log scale)", title=f"time, {series}")


def plot_memory(axis, points: list[dict]) -> None:
    """Draw the extra memory of one series, ours and the plain loop's."""
    sizes = [p["n"] for p in points]
    axis.plot(sizes, [4e-6 * n * n for n in sizes], ls=":", color="grey", label="n × n floats")
    for name, (label, color, marker) in LOOKS.items():
        found = [(p["n"], p[f"{name}_mb"]) for p in points if f"{name}_mb" in p]
        if found:
            axis.plot(*zip(*found), marker=marker, ms=4, lw=1.5, color=color, label=label)
    u_floats = [4e-6 * p["n"] * p["k"] for p in points]
    axis.plot(sizes, u_floats, ls="--", color=COLORS[0], lw=1, label="u: n × k floats")
    axis.set(xscale="log", yscale="log")
    dress(axis, x="n", y="MB (log scale)", title=f"extra memory, {points[0]['series']}")


def describe_machine(device: str) -> str:
    """Device, threads and versions, for the table's heading."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = f"torch {torch.__version__}"
    if device == "cuda":
        versions += f", Triton {importlib.import_module('triton').__version__}, bfloat16 features"
    return f"{name}, {torch.get_num_threads()} threads, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="PATH.json")
    parser.add_argument("--growth", type=Path, metavar="PATH.json")
    parser.add_argument("--plot", type=Path, metavar="PATH.json")
    args = parser.parse_args()
    if args.plot:
        plot_growth(args.plot)
        return
    print(f"{describe_machine(args.device)}, medians of {args.repeats}")
    if args.growth:
        with use_fused(True):
            measure_growth(args.growth, args.device, args.repeats)
        return
    rows = measure_table(args.device, args.repeats)
    if args.json:
        args.json.write_text(
            json.dumps({"machine": describe_machine(args.device), "repeats": args.repeats, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
