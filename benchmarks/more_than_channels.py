"""Choosing more tokens than there are channels, on a GPU: plain float32 and halves on tensor cores, beside float64.

`python benchmarks/more_than_channels.py`: the greedy by determinant, 2d of n tokens with d channels, on features around
forty centres, and on two kinds whose spectrum falls, as that of photographs does. For both kinds of product: time with
the kernel matrix, how many choices were made before v² was spent, and how many of the first d/2, d and 1.5d choices
are among as many of the greedy in float64. `vlprune.selection` takes halves above `FEW_CHANNELS`.
"""

import argparse

import torch
from selection import make_tokens, median_ms

from vlprune.selection.numerics import TIE

#: n and d; the last is a video of 64 frames in LLaVA-Video-7B.
CASES = ((1024, 64), (1024, 128), (2880, 256), (2880, 512), (4000, 1024), (6000, 2048), (10816, 3584))
KINDS = ("around centres", "all channels, falling", "few directions, falling")


def make_features(kind, n, d, device):
    """Features (1, n, d) bfloat16."""
    if kind == KINDS[0]:
        return make_tokens(1, n, d, device)[0].to(torch.bfloat16)
    g = torch.Generator(device).manual_seed(0)
    rank, power = (d, -1.0) if kind == KINDS[1] else (min(d, 1500), -0.7)
    sizes = torch.arange(1, rank + 1, device=device) ** power
    directions = torch.randn(rank, d, generator=g, device=device) / rank**0.5
    return ((torch.randn(n, rank, generator=g, device=device) * sizes) @ directions)[None].to(torch.bfloat16)


def choose_in_float64(x, r, k, eps=1e-6):
    """The greedy's k choices of one image (k,), and how many were made before v² was spent."""
    unit = torch.nn.functional.normalize(x[0].double(), dim=-1) * r[0].double()[:, None]
    kernel, index = unit @ unit.T, torch.arange(len(unit), device=x.device)
    v2, steps = kernel.diagonal().clone(), torch.zeros(k, len(unit), dtype=torch.float64, device=x.device)
    start, scale, unspent = v2.clone(), v2.max(), 0
    order = torch.empty(k, dtype=torch.int64, device=x.device)
    for t in range(k):
        values = start
        if unspent == t and v2.max() > (TIE + 8 * eps) * scale:
            values, unspent = v2, t + 1
        j = order[t] = torch.where(values >= values.max() - TIE * scale, index, len(index)).min()
        if unspent > t:
            steps[t] = (kernel[j] - steps[:t, j] @ steps[:t]) / torch.sqrt(v2[j] + eps * scale)
            v2 = v2 - steps[t] ** 2
        v2[j] = start[j] = -torch.inf
    return order, unspent


def measure_case(kind, n, d, device, repeats):
    """Print a line for each kind of product."""
    # here, for Triton is not everywhere
    from vlprune.selection.fused.cosines import gram
    from vlprune.selection.fused.device_errors import fault_word
    from vlprune.selection.fused.greedy import greedy
    from vlprune.selection.fused.token_table import measure

    k, x = min(n, 2 * d), make_features(kind, n, d, device)
    r = 0.3 + 0.7 * torch.rand(1, n, generator=torch.Generator(device).manual_seed(1), device=device)
    want, limit = choose_in_float64(x, r, k)
    table = measure(x, fault_word(x.device), given=r, kind="s_prime")
    for exact in (True, False):

        def run(exact=exact):
            kernel = gram(x, table, weighted=True, store=True, graph="bipartite", tau=0.3, exact=exact)[0]
            return greedy(k, kernel=kernel, exact=exact)

        order, gains, _ = run()
        same = [len(set(want[:c].tolist()) & set(order[0, :c].tolist())) / c for c in (d // 2, d, min(k, d + d // 2))]
        ms = median_ms(lambda run=run: run()[0], device, repeats)
        print(
            f"| {kind} | {n:,} | {d:,} | {'float32' if exact else 'halves'} | {ms:.2f} | {int((gains > 0).sum()):,} "
            f"of {limit:,} | {' '.join(f'{part:.3f}' for part in same)} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", type=int, metavar="N D", help="numbers of tokens and channels, by turns")
    args = parser.parse_args()
    cases = CASES if args.cases is None else list(zip(args.cases[::2], args.cases[1::2]))
    print("| features | n | d | products | ms | chosen by v² | of the first d/2, d, 1.5d as in float64 |")
    print("| :--- | ---: | ---: | :--- | ---: | ---: | ---: |")
    for kind in KINDS:
        for n, d in cases:
            measure_case(kind, n, d, args.device, args.repeats)


if __name__ == "__main__":
    main()
