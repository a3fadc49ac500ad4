"""Selections against float64, in numpy."""

import random

import numpy as np
import torch

from fuzz_cases.expectations import Wrong, expect, expect_close

CLOSE = 2e-4  # of the largest v²: choices nearer than that are ties of float32


def drawn_tokens(draw: random.Random) -> tuple[torch.Tensor, str]:
    """(B, n, d) tokens of some odd kind."""
    rows, n, d = draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 5, 8, 13, 24, 40]), draw.choice([1, 2, 4, 16, 48])
    noise = np.random.default_rng(draw.getrandbits(32))
    x = noise.normal(size=(rows, n, d)) + draw.choice([0.0, 0.5, 2.0]) * noise.normal(size=(rows, 1, d))
    kind = draw.choice(["plain", "duplicates", "zeros", "ties", "scales", "equal", "signs", "half", "bfloat", "double"])
    if kind == "duplicates":
        x = x[:, noise.integers(0, n, n)]
    elif kind == "zeros":
        x[:, noise.random(n) < 0.4] = 0
    elif kind == "ties":
        x = np.round(x)
    elif kind == "scales":
        x *= 10.0 ** noise.uniform(-12, 12, size=(rows, n, 1))
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "signs":
        x[:, n // 2 :] = -x[:, : n - n // 2]
    dtypes = {"half": torch.float16, "bfloat": torch.bfloat16, "double": torch.float64}
    return torch.from_numpy(x).to(dtypes.get(kind, torch.float32)), kind


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n, k) of the rows of x (n, d) and y (k, d); 0 where one of them has no length."""
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)
    return np.divide(x @ y.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def scores64(s: np.ndarray, tau: float, gamma: float, graph: str) -> np.ndarray:
    """Redundancy by the paper's formula, from cosines (n, n)."""
    n = len(s)
    even = np.arange(n) % 2 == 0
    meets = ~np.eye(n, dtype=bool) if graph == "full" else even[:, None] != even[None]
    edges = meets & (s >= tau)
    degree, met = edges.sum(1), meets.sum(1)
    mean = np.where(edges, s, 0).sum(1) / np.maximum(degree, 1)
    alone = np.where(meets, s, 0).sum(1) / np.maximum(met, 1)
    return np.where(degree > 0, degree * np.exp(gamma * (mean - tau)), alone)


def relevance64(x: np.ndarray, query: np.ndarray) -> np.ndarray | None:
    """Relevance in [0, 1] by the paper's formula; None where float32 may see a difference or none."""
    raw = cosines(x, query.mean(0, keepdims=True))[:, 0]
    low, high = raw.min(), raw.max()
    if 2e-7 < high - low < 1e-3:
        return None
    return (raw - low) / (high - low) if high > low + 1e-6 else np.ones(len(raw))


def check_order(kernel: np.ndarray, order: list[int], among: set[int] | None) -> None:
    """Every choice adds as much as the best one could, up to rounding, until there is nothing left to add."""
    gains, first = kernel.diagonal().copy(), np.ones(len(kernel), dtype=bool)
    if among:
        first[:] = False
        first[list(among)] = True
    vectors = np.zeros((len(order), len(kernel)))
    scale = gains.max()
    for t, j in enumerate(order):
        if not (first & (gains > -np.inf)).any():
            first[:] = True  # all of `among` are chosen
        best = gains[first].max()
        if best <= 1e-3 * scale:  # what is left is rounding
            return
        if not first[j] or gains[j] < best - CLOSE * scale:
            raise Wrong(f"choice {t} is {j}, which adds {gains[j]:.6g}; another would add {best:.6g}")
        row = (kernel[j] - vectors[:t].T @ vectors[:t, j]) / np.sqrt(gains[j])
        vectors[t] = row
        gains -= row**2
        gains[order[: t + 1]] = -np.inf


def selection_case(draw: random.Random) -> str:
    from vlprune.selection import graph_keep, select_script
    from vlprune.selection.fusion import fuse

    x, kind = drawn_tokens(draw)
    rows, n, d = x.shape
    m = draw.randint(1, n)
    settings = {
        "tau": draw.choice([0.3, 0.0, -1.0, 0.9, 1.0]),
        "gamma": draw.choice([5.0, 0.0, 1.0]),
        "graph": draw.choice(["bipartite", "full"]),
        "kernel": draw.choice(["s_prime", "s"]),
        "fusion": draw.choice(["supplement", "released", "filter"]),
        "rho": draw.choice([0.1, 0.5, 1.0]),
    }
    noise = np.random.default_rng(draw.getrandbits(32))
    query = torch.from_numpy(noise.normal(size=(rows, draw.randint(1, 3), d))).to(x.dtype)
    if draw.random() < 0.05:  # values that are none
        where, value = draw.choice([x, query]), draw.choice([np.nan, np.inf, -np.inf])
        where[draw.randrange(rows), draw.randrange(where.shape[1]), draw.randrange(d)] = value
        try:
            select_script(x, query, m, **settings)
        except ValueError as error:
            expect("must be finite" in str(error), f"another error: {error}")
            return "not finite: refused"
        raise Wrong(f"{value} was taken")
    found = select_script(x, query, m, **settings)
    for b in range(rows):
        tokens, kept, ranks = x[b].double().numpy(), found.kept[b].tolist(), found.order[b].tolist()
        order = [token for token in ranks if token != -1]
        expect(ranks == order + [-1] * (len(ranks) - len(order)), f"order {ranks}")
        expect(kept == sorted(set(kept)) and len(kept) == m, f"kept {kept}")
        expect(len(set(order)) == len(order) and set(order) <= set(range(n)), f"order {order}")
        s = cosines(tokens, tokens)
        survivors = None
        if found.redundancy is not None:
            # a cosine of float32 that lies at the threshold may fall on either side of it
            unsure = (np.abs(s - settings["tau"]) < 1e-5).any()
            got = found.redundancy[b].double().numpy()
            if not unsure:
                wanted = scores64(s, settings["tau"], settings["gamma"], settings["graph"])
                expect_close("redundancy", got, wanted, rtol=1e-3, atol=1e-4)
            keep = max(m, int(settings["rho"] * n + 0.5)) if settings["fusion"] == "filter" else m
            survivors = graph_keep(found.redundancy[b : b + 1], keep)
            merged = fuse(found.order[b : b + 1], survivors, m, rule=settings["fusion"])
            expect(merged[0].tolist() == kept, f"kept {kept} is not fused {merged.tolist()}")
            lacking = len(set(order[:m]) - set(survivors[0].tolist())) if settings["fusion"] == "supplement" else 0
            expect(len(order) == m + lacking, f"{len(order)} choices, not {m + lacking}")
        else:
            expect(sorted(order[:m]) == kept, f"kept {kept} is not the first of {order}")
        wanted = relevance64(tokens, query[b].double().numpy())
        if wanted is None:
            continue
        got = found.relevance[b].double().numpy()
        expect_close("relevance", got, wanted, rtol=1e-5, atol=2e-3 if n > 1 else 1e-6)
        weight = got ** (1.0 if settings["kernel"] == "s_prime" else 0.5)
        among = set(survivors[0].tolist()) if settings["fusion"] == "filter" and survivors is not None else None
        check_order(weight[:, None] * s * weight, order, among)
    return kind
