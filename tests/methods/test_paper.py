"""`Script` against the paper's Method section, transcribed line by line in float64 from the text alone."""

import math

import pytest
import torch

from vlprune import Script
from vlprune.types import Query, TokenView

TAU, GAMMA, EPSILON = 0.3, 5.0, 1e-6  # "By default, Script in GSP is configured with τ = 0.3 and γ = 5"; ε "e.g., 10⁻⁶"


def cosine(a, b):
    return float(a @ b) / (float(a.norm()) * float(b.norm()))


def graph_structured_pruning(tokens, m):
    """Section 4.1: the set that GSP keeps of n tokens."""
    n = len(tokens)
    source = [i for i in range(n) if i % 2 == 0]  # "even indices to V_src, odd-indexed to V_dst"
    destination = [i for i in range(n) if i % 2 == 1]
    score = {}
    for side, other in ((source, destination), (destination, source)):
        for i in side:
            edges = [cosine(tokens[i], tokens[j]) for j in other]
            strong = [edge for edge in edges if edge >= TAU]  # "retain all similarity edges above a threshold τ"
            degree = len(strong)
            if degree > 0:
                score[i] = degree * math.exp(GAMMA * (sum(strong) / degree - TAU))
            else:
                score[i] = sum(edges) / len(edges)  # "the mean similarity … under the full graph G"
    ranked = sorted(range(n), key=lambda i: -score[i])  # "rank all visual tokens in descending order"
    return set(ranked[n - m :])  # "discard the top p most redundant ones", (1 − p) n = m


def query_conditioned_semantic_pruning(tokens, words, k):
    """Section 4.2: the k tokens that QCSP chooses, in order."""
    n = len(tokens)
    mean = sum(words) / len(words)  # Eq. 3
    raw = [cosine(token, mean) for token in tokens]  # Eq. 4
    relevance = [(r - min(raw)) / (max(raw) - min(raw)) for r in raw]  # "min-max normalization"
    unit = [token / token.norm() for token in tokens]
    kernel = [[relevance[i] * float(unit[i] @ unit[j]) * relevance[j] for j in range(n)] for i in range(n)]
    v2 = [kernel[i][i] for i in range(n)]
    u = [[] for _ in range(n)]
    chosen = []
    for _ in range(k):
        j = max((i for i in range(n) if i not in chosen), key=lambda i: v2[i])
        chosen.append(j)
        projections = {}
        for i in range(n):
            if i not in chosen:
                known = sum(a * b for a, b in zip(u[j], u[i]))
                projections[i] = (kernel[j][i] - known) / math.sqrt(v2[j] + EPSILON)
        for i, e in projections.items():
            u[i].append(e)
            v2[i] -= e * e
    return chosen


def final_token_selection(tokens, words, m):
    """Section 4.3: the intersection, supplemented "by iteratively increasing k to retrieve more tokens"."""
    survivors, k = graph_structured_pruning(tokens, m), m  # the footnote: k = (1 − p) n for both
    kept = survivors & set(query_conditioned_semantic_pruning(tokens, words, m))
    while len(kept) < m:
        k += 1
        kept = kept | {query_conditioned_semantic_pruning(tokens, words, k)[-1]}
    return sorted(kept)


@pytest.mark.parametrize("seed", range(12))
def test_script_is_the_paper(seed):
    """Tokens that are alike in groups, so that the graph has edges and the two modules disagree."""
    generator = torch.Generator().manual_seed(seed)
    n, d, m = ((16, 12, 4), (20, 16, 7), (25, 24, 9))[seed % 3]
    groups = torch.randn(5, d, generator=generator)
    tokens = groups[torch.randint(5, (n,), generator=generator)] + 0.6 * torch.randn(n, d, generator=generator)
    words = torch.randn(3, d, generator=generator)
    view = TokenView(tokens[None], (1, n))
    kept = Script(keep=m).select(view, Query(tokens[None], words[None], 1, "llm", ())).kept
    assert kept.tolist() == [final_token_selection(tokens.double(), words.double(), m)]


def test_the_transcription_tells_the_readings_apart():
    """On these tokens the other readings of the fusion, and either module alone, keep something else."""
    generator = torch.Generator().manual_seed(2)
    groups = torch.randn(5, 16, generator=generator)
    tokens = groups[torch.randint(5, (20,), generator=generator)] + 0.6 * torch.randn(20, 16, generator=generator)
    words = torch.randn(3, 16, generator=generator)
    view, query = TokenView(tokens[None], (1, 20)), Query(tokens[None], words[None], 1, "llm", ())
    paper = final_token_selection(tokens.double(), words.double(), 7)
    for other in ({"fusion": "released"}, {"fusion": "filter"}, {"tau": 0.7}, {"kernel": "s"}, {"graph": "full"}):
        assert Script(keep=7, **other).select(view, query).kept.tolist() != [paper], other
    assert sorted(graph_structured_pruning(tokens.double(), 7)) != paper
    assert sorted(query_conditioned_semantic_pruning(tokens.double(), words.double(), 7)) != paper
