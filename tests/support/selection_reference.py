"""Slow, obvious float64 versions of what `vlprune.selection` computes, one image at a time."""

import math
import random

import numpy as np

TIE = 2e-6


def cosine(a, b):
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b)) / length if length > 0 else 0.0


def neighbours(i, n, graph, src=None):
    """The tokens that token i may meet; `src` is the first half of a random graph."""
    if graph == "full":
        return [j for j in range(n) if j != i]
    first = set(range(0, n, 2)) if graph == "bipartite" else set(src)
    return [j for j in range(n) if (j in first) != (i in first)]


def graph_scores(tokens, tau=0.3, gamma=5.0, graph="bipartite", src=None):
    scores = []
    for i in range(len(tokens)):
        met = [cosine(tokens[i], tokens[j]) for j in neighbours(i, len(tokens), graph, src)]
        edges = [s for s in met if s >= tau - TIE]
        if edges:
            scores.append(len(edges) * math.exp(gamma * (sum(edges) / len(edges) - tau)))
        else:
            scores.append(sum(met) / len(met) if met else 0.0)
    return scores


def graph_keep(scores, keep):
    return sorted(sorted(range(len(scores)), key=lambda i: (scores[i], i))[:keep])


def ascending(values):
    """The indices from the smallest value to the largest; a run of values close to their neighbours goes by index."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    runs = []
    for i in order:
        size = max(1.0, abs(values[i]), abs(values[runs[-1][-1]])) if runs else 1.0
        if runs and values[i] - values[runs[-1][-1]] <= TIE * size:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [i for run in runs for i in sorted(run)]


def relevance_scores(tokens, query, mask=None, sign=1):
    used = [q for q, on in zip(query, mask or [True] * len(query)) if on]
    mean = [sum(column) / len(used) for column in zip(*used)]
    raw = [sign * cosine(token, mean) for token in tokens]
    low, high = min(raw), max(raw)
    return [(r - low) / (high - low) if high - low > TIE else 1.0 for r in raw]


def query_kernel(tokens, relevance, kind="s_prime"):
    power = 1.0 if kind == "s_prime" else 0.5
    return [
        [relevance[i] ** power * cosine(a, b) * relevance[j] ** power for j, b in enumerate(tokens)]
        for i, a in enumerate(tokens)
    ]


def det(kernel, chosen):
    return float(np.linalg.det(np.asarray(kernel, dtype=np.float64)[np.ix_(chosen, chosen)]))


def greedy(kernel, k, candidates=None):
    """The best single step k times, by determinants; for kernels of full rank, without ties."""
    chosen = []
    while len(chosen) < k:
        left = [i for i in range(len(kernel)) if i not in chosen]
        pool = [i for i in left if candidates is not None and i in candidates] or left
        chosen.append(max(pool, key=lambda i: (det(kernel, [*chosen, i]), -i)))
    return chosen


def fuse(order, graph_keep, m, rule):
    first, graph = order[:m], set(graph_keep)
    if rule == "filter":
        return sorted(([t for t in order if t in graph] + [t for t in order if t not in graph])[:m])
    kept = [t for t in first if t in graph]
    more = first if rule == "released" else order[m:]
    for t in more:
        if len(kept) < m and t not in kept:
            kept.append(t)
    return sorted(kept)


def stopped(order, graph_keep, m):
    """An order with −1 where "supplement" no longer needs it: m tokens, and one more for each that the graph drops."""
    ranks = m + len([t for t in order[:m] if t not in graph_keep])
    return order[:ranks] + [-1] * (len(order) - ranks)


def survivors(order, m, agree, seed):
    """m of the order's tokens, ascending, of which `agree` are among its first m."""
    g = random.Random(seed)
    return sorted(g.sample(order[:m], agree) + g.sample(order[m:], m - agree))


def random_kernel(seed, n, rank=None):
    """A positive definite matrix with varied diagonal."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, rank or n + 2))
    x *= g.uniform(0.5, 1.5, size=(n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def correlated_units(seed, n, d):
    """Unit vectors with a common part, so that cosines are mostly positive."""
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, d)) + g.uniform(0, 2) * g.normal(size=d)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def parity_permutation(seed, n):
    """A permutation that sends even places to even places."""
    g = random.Random(seed)
    even, odd = list(range(0, n, 2)), list(range(1, n, 2))
    g.shuffle(even)
    g.shuffle(odd)
    return [(even if i % 2 == 0 else odd)[i // 2] for i in range(n)]


def farthest(tokens, k):
    """Farthest-point choice by 1 − cosine; the first token is the one whose nearest neighbour is farthest."""
    n = len(tokens)
    apart = [[1.0 - cosine(a, b) for b in tokens] for a in tokens]
    left = [min((apart[i][j] for j in range(n) if j != i), default=math.inf) for i in range(n)]
    chosen = []
    for _ in range(k):
        rest = [i for i in range(n) if i not in chosen]
        best = max(left[i] for i in rest)
        chosen.append(next(i for i in rest if left[i] >= best - TIE))
        left = [min(apart[i][j] for j in chosen) for i in range(n)]
    return chosen
