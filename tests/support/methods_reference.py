"""Slow, obvious float64 versions of the methods, one image at a time: lists of floats in, indices and embeddings out.

Each is written from the method's description. `project` maps one tower state to one embedding. A result is the list of
kept tokens in prompt order, and a dictionary from places in that list to the embeddings that replace a token's own.
"""

import math

import torch

TIE = 2e-6


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def cosine(a, b):
    lengths = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / lengths if lengths > 0 else 0.0


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors)]


def best(values, tolerance=TIE):
    """The lowest index whose value is within the tolerance of the largest; `values` is a dictionary."""
    top = max(values.values())
    return min(i for i, value in values.items() if value >= top - tolerance)


def ranked(scores):
    """From the highest to the lowest; rounded, for equal tokens may differ in the last bit of a sum."""
    return sorted(range(len(scores)), key=lambda i: (-round(scores[i], 12), i))


def scaled(raw, unit):
    low, high = min(raw), max(raw)
    return [(r - low) / (high - low) if high - low > TIE * unit else 1.0 for r in raw]


def relevance(tokens, question, sign):
    return scaled([sign * cosine(token, question) for token in tokens], unit=1.0)


def relevance_top_k(tokens, question, sign, m):
    return sorted(ranked(relevance(tokens, question, sign))[:m])


def attention_top_k(attention, m):
    return sorted(ranked(attention)[:m])


def redundancy(tokens, tau=0.3, gamma=5.0):
    scores = []
    for i, token in enumerate(tokens):
        met = [cosine(token, other) for j, other in enumerate(tokens) if j % 2 != i % 2]
        edges = [c for c in met if c >= tau]
        if edges:
            scores.append(len(edges) * math.exp(gamma * (sum(edges) / len(edges) - tau)))
        else:
            scores.append(sum(met) / len(met) if met else 0.0)
    return scores


def graph_only(tokens, m, tau, gamma):
    return sorted(ranked([-score for score in redundancy(tokens, tau, gamma)])[:m])


def greedy_map(tokens, r, m):
    """m tokens in order of choice: greedy MAP on r_i cos_ij r_j, with the vectors u that make it exact."""
    n = len(tokens)
    kernel = [[r[i] * cosine(tokens[i], tokens[j]) * r[j] for j in range(n)] for i in range(n)]
    v2, u, chosen = [kernel[i][i] for i in range(n)], [[] for _ in range(n)], []
    for _ in range(m):
        j = best({i: v2[i] for i in range(n) if i not in chosen})
        for i in range(n):
            if i != j and i not in chosen:
                e = (kernel[j][i] - dot(u[j], u[i])) / math.sqrt(v2[j] + 1e-6)
                u[i].append(e)
                v2[i] -= e * e
        chosen.append(j)
    return chosen


def cdpruner(tokens, image, question, sign, m):
    return greedy_map(tokens, relevance(image, question, sign), m)


def dpp_only(tokens, m):
    return greedy_map(tokens, [1.0] * len(tokens), m)


def script(tokens, image, question, sign, m):
    """As the paper has it: the graph's choice among the first m of the greedy, topped up from the next ones."""
    order = greedy_map(tokens, relevance(image, question, sign), min(2 * m, len(tokens)))
    agreed = set(graph_only(tokens, m, tau=0.3, gamma=5.0))
    both = [token for token in order[:m] if token in agreed]
    return sorted([*both, *order[m:]][:m])


def graph_weights(tokens, grid):
    """1 / (1 + s / median of s) for each token; s is the redundancy of the mean of its 2 × 2 neighbours, from 0 on."""
    rows, columns = grid
    cells = {}
    for i in range(rows * columns):
        cells.setdefault((i // columns // 2, i % columns // 2), []).append(i)
    s = [max(score, 0.0) for score in redundancy([mean([tokens[i] for i in cell]) for cell in cells.values()])]
    middle = max(1.0, sorted(s)[(len(s) - 1) // 2])
    weights = {i: 1.0 / (1.0 + score / middle) for score, cell in zip(s, cells.values()) for i in cell}
    return [weights[i] for i in range(rows * columns)]


def focus(relevant):
    """1 if at most a 16th of the tokens is more than half relevant, 0 from an 8th on; a token counts gradually."""
    share = mean([[min(1.0, max(0.0, 8 * value - 3.5))] for value in relevant])[0]
    return min(1.0, max(0.0, 2 - 16 * share))


def script_plus(tokens, image, question, sign, m, grid, source, power=2.0):
    """Where the question asks about something small, relevance to the power, times what the graph leaves of it.

    By the LLM's embeddings, relevance as it is, for every question."""
    relevant = relevance(image, question, sign)
    small = 0 if source == "llm" else focus(relevant)
    asked = [value ** (1 + (power - 1) * small) for value in relevant]
    graph = [1 - small * (1 - weight) for weight in graph_weights(tokens, grid)]
    return greedy_map(tokens, [a * g for a, g in zip(asked, graph)], m)


def random(n, m, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + n))[:m].tolist()


def script_released(tokens, image, question, sign, m):
    """Relevance by dot products; choosing j takes L_ij² / v_j² from every v_i², until no v² is positive."""
    raw = [sign * dot(token, question) for token in image]
    r = scaled(raw, unit=max(map(abs, raw)))
    n = len(tokens)
    kernel = [[r[i] * cosine(tokens[i], tokens[j]) * r[j] for j in range(n)] for i in range(n)]
    v2, chosen = [kernel[i][i] for i in range(n)], []
    noise = TIE * max(v2)
    for _ in range(m):
        j = best({i: v2[i] for i in range(n) if i not in chosen}, noise)
        chosen.append(j)
        if v2[j] > noise:
            v2 = [v2[i] if i == j else v2[i] - kernel[i][j] ** 2 / v2[j] for i in range(n)]
    return chosen


def divprune(tokens, m):
    n = len(tokens)
    far = [[1.0 - cosine(a, b) for b in tokens] for a in tokens]
    chosen = [best({i: min(far[i][j] for j in range(n) if j != i) for i in range(n)})] if n > 1 else [0]
    while len(chosen) < m:
        chosen.append(best({i: min(far[i][j] for j in chosen) for i in range(n) if i not in chosen}))
    return chosen


def quantile(values, q):
    """Linear between the two nearest order statistics."""
    values = sorted(values)
    at = q * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def softmax(values):
    exps = [math.exp(value - max(values)) for value in values]
    return [e / sum(exps) for e in exps]


def trim(image, tower, question, sign, m, project, adaptive=False):
    close = [sign * dot(token, question) for token in image]
    n = len(image)
    if adaptive:
        scores = softmax(close)
        bound = quantile(scores, 0.75) + 1.5 * (quantile(scores, 0.75) - quantile(scores, 0.25))
        m = min(m, sum(score > bound * (1 + TIE) for score in scores) + 1)
    elif m == n:
        return list(range(n)), {}
    top = ranked(close)[: m - 1]
    dropped = [i for i in range(n) if i not in top]
    return [*sorted(top), dropped[-1]], {m - 1: project(mean([tower[i] for i in dropped]))}


def visionzip(attention, keys, tower, cls, dominant, contextual, project):
    """`dominant` counts the CLS token, where there is one."""
    n = len(attention)
    if dominant + contextual == n:
        return list(range(n)), {}
    top = sorted(ranked(attention)[: dominant - (cls is not None)])
    rest = [i for i in range(n) if i not in top]
    targets, merged = [], []
    if contextual:
        targets = rest[:: len(rest) // contextual][:contextual]
        members = {target: [] for target in targets}
        for i in rest:
            if i not in targets:
                place = best({place: cosine(keys[i], keys[target]) for place, target in enumerate(targets)})
                members[targets[place]].append(tower[i])
        for target in targets:
            more = mean(members[target]) if members[target] else [0.0] * len(tower[target])
            merged.append(project([a + b for a, b in zip(tower[target], more)]))
    kept = [*top, *targets]
    replaced = {len(top) + place: embedding for place, embedding in enumerate(merged)}
    if cls is not None:
        kept.insert(0, min(i for i in range(n) if i not in kept))
        replaced = {0: project(cls), **{place + 1: embedding for place, embedding in replaced.items()}}
    return kept, replaced


def cells(rows, columns, m):
    """A list of m lists of tokens (row, column): bands of rows, each cut into cells."""

    def stretch(bands):
        height, width = rows / bands, columns * bands / m
        return max(height / width, width / height)

    fitting = [r for r in range(1, rows + 1) if r <= m <= r * columns]
    whole = [r for r in fitting if m % r == 0 and stretch(r) <= 2 + 1e-9]
    bands = sorted(whole or fitting, key=lambda r: (round(stretch(r), 9), r))[0]
    found = []
    for band in range(bands):
        inside = [row for row in range(rows) if band * rows // bands <= row < (band + 1) * rows // bands]
        across = (band + 1) * m // bands - band * m // bands
        for cell in range(across):
            among = [c for c in range(columns) if cell * columns // across <= c < (cell + 1) * columns // across]
            found.append([(row, column) for row in inside for column in among])
    return found


def middle(cell, columns):
    """The token of a cell that is nearest its centre; of several the first."""
    row, column = mean(cell)
    away = {r * columns + c: (r - row) ** 2 + (c - column) ** 2 for r, c in cell}
    return min(away, key=lambda token: (round(away[token], 9), token))


def uniform_grid(grid, m):
    return [middle(cell, grid[1]) for cell in cells(*grid, m)]


def average_pool(tokens, grid, m):
    found = cells(*grid, m)
    means = [mean([tokens[r * grid[1] + c] for r, c in cell]) for cell in found]
    return [middle(cell, grid[1]) for cell in found], dict(enumerate(means))
