"""Script's selection against a plain torch loop, on this machine: `python benchmarks/selection.py [--device cuda]`.

The baseline does what released pruning code does: it builds the n × n kernel and runs the greedy one image at a time
with a host read (`.item()`) in every step. Both start from the same features and relevance and end with kept indices;
the table prints medians and their ratio, and how many of the kept indices agree.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vlprune.selection import select_script


def plain_loop(features: Tensor, relevance: Tensor, k: int) -> Tensor:
    kept = []
    for x, r in zip(features, relevance):
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


def median_ms(run: Callable[[], Tensor], device: str, repeats: int) -> float:
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if i >= 2:  # the first two warm up
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32, medians of {args.repeats}")
    print(
        f"{'images':>6} {'n':>6} {'d':>5} {'k':>5}  {'plain loop':>11} {'greedy alone':>13} {'whole Script':>13}   same"
    )
    for batch, n, d, k in ((1, 576, 256, 64), (1, 576, 4096, 64), (5, 576, 4096, 64), (1, 2880, 4096, 320)):
        torch.manual_seed(0)
        centres = torch.randn(40, d)
        features = (centres[torch.randint(40, (batch, n))] + 0.7 * torch.randn(batch, n, d)).to(args.device)
        relevance = torch.rand(batch, n).to(args.device)

        def script(rule: str, m: int = k, x: Tensor = features, r: Tensor = relevance) -> Tensor:
            return select_script(x, None, m, relevance=r, fusion=rule).kept

        def loop(x: Tensor = features, r: Tensor = relevance, m: int = k) -> Tensor:
            return plain_loop(x, r, m)

        base = median_ms(loop, args.device, args.repeats)
        # "released" is the greedy's own set (the graph is scored too); "supplement" runs up to 2k ranks of it
        alone = median_ms(lambda: script("released"), args.device, args.repeats)
        whole = median_ms(lambda: script("supplement"), args.device, args.repeats)
        same = (script("released") == loop()).float().mean().item()
        print(
            f"{batch:>6} {n:>6} {d:>5} {k:>5}  {base:8.1f} ms {alone:6.1f} ms {base / alone:3.1f}x "
            f"{whole:6.1f} ms {base / whole:3.1f}x   {same:.0%}"
        )


if __name__ == "__main__":
    main()
