"""Script on one image in five steps: graph, survivors, relevance, order of choice, fusion; with a token's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vlprune.methods import Method
from vlprune.methods.script import Script
from vlprune.selection import graph_keep, graph_scores, graph_threshold
from vlprune.selection.graph import graph_sides
from vlprune.selection.numerics import TIE
from vlprune.types import Query, TokenView


class Step(NamedTuple):
    """A step of Script: what it does, what it found on this image, and what it found of the token."""

    title: str
    does: str
    image: str
    token: str
    section: str  # the heading in docs/method.md


@dataclass(frozen=True)
class ScriptSteps:
    """All that Script computes of an image of n tokens, of which it keeps m.

    `cosines` (n, n) are of all pairs, `redundancy` and `relevance` (n,) the scores. `survivors` are the tokens that the
    graph lets through, `order` those that the greedy chose, one after another, `gains` what each of them added, and
    `kept` what fusion makes of both.
    """

    script: Script
    tau: float
    cosines: Tensor
    redundancy: Tensor
    survivors: list[int]
    relevance: Tensor
    order: list[int]
    gains: list[float]
    kept: list[int]
    source: str | None

    @property
    def m(self) -> int:
        """How many tokens are kept."""
        return len(self.kept)

    def edges(self, token: int) -> Tensor:
        """(n,) which tokens the graph joins with this one."""
        return meets(len(self.cosines), token, self.script.graph) & (self.cosines[token] >= self.tau - TIE)


def explained_script(method: Method, m: int) -> Script:
    """The Script to explain beside a method: itself, or one with the paper's settings, that keeps `m` tokens.

    >>> from vlprune import Random, ScriptPlus
    >>> explained_script(Random(keep=8), 8)
    Script(keep=8, relevance='auto', sign=None, pooling='auto', tau=0.3, gamma=5.0, graph='bipartite', \
kernel='s_prime', fusion='supplement', rho=0.5)
    >>> explained_script(ScriptPlus(keep=8), 8).fusion   # a graph that only weighs has no steps to show
    'supplement'
    """
    from dataclasses import fields, replace

    if type(method) is Script:
        return replace(method, keep=m)
    if isinstance(method, Script) and not isinstance(method.tau, str) and method.fusion != "released":
        own = {field.name: getattr(method, field.name) for field in fields(Script)}
        return Script(**{**own, "keep": m})
    return Script(keep=m)


def compute_steps(view: TokenView, query: Query | None, script: Script) -> ScriptSteps:
    """Script on one image (1, n, d), step by step; `script.keep` is a number of tokens."""
    m = script.count(view.n)
    tau = float(graph_threshold(view.features, script.tau)) if isinstance(script.tau, str) else script.tau
    redundancy = graph_scores(view.features, tau=tau, gamma=script.gamma, graph=script.graph)
    through = max(m, int(script.rho * view.n + 0.5)) if script.fusion == "filter" else m
    chosen = script.choose(view, query, m)
    assert chosen.order is not None
    assert chosen.gains is not None
    order = [token for token in chosen.order[0].tolist() if token >= 0]  # up to where the greedy stopped
    unit = torch.nn.functional.normalize(view.features[0].double(), dim=1)
    return ScriptSteps(
        script,
        tau,
        unit @ unit.T,
        redundancy[0],
        graph_keep(redundancy, through)[0].tolist(),
        script.relevance_scores(view, query)[0],
        order,
        chosen.gains[0, : len(order)].tolist(),
        chosen.kept[0].tolist(),
        None if query is None else query.source,
    )


def meets(n: int, token: int, graph: str) -> Tensor:
    """(n,) which of n tokens the graph compares with this one.

    >>> meets(6, 2, "bipartite").tolist()
    [False, True, False, True, False, True]
    """
    first, second = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    left, right = graph_sides(n, graph, torch.device("cpu"))
    first[left], second[right] = True, True
    if graph == "full":
        first[token] = False
        return first
    return second if first[token] else first


def describe_steps(steps: ScriptSteps, token: int) -> list[Step]:
    """The five steps in words, with the numbers of the image and of one of its tokens."""
    return [
        _describe_graph(steps, token),
        _describe_survivors(steps, token),
        _describe_relevance(steps, token),
        _describe_order(steps, token),
        _describe_fusion(steps, token),
    ]


def _describe_graph(steps: ScriptSteps, token: int) -> Step:
    edges, cosines, tau = steps.edges(token), steps.cosines[token], steps.tau
    n, degree = len(edges), int(edges.sum())
    met = int(meets(n, token, steps.script.graph).sum())
    total = sum(int(steps.edges(i).sum()) for i in range(n)) // 2
    score = float(steps.redundancy[token])
    if degree:
        mean = float(cosines[edges].mean())
        formula = f"{degree} · exp({steps.script.gamma:g} · ({mean:.3f} − {tau:g})) = {score:.4g}"
        says = f"is joined with {degree} of the {met} tokens it meets; its redundancy is {formula}."
    else:
        says = f"is joined with none of the {met} tokens it meets; its redundancy is their mean cosine, {score:.3f}."
    return Step(
        "Graph",
        f"Two tokens that the graph lets meet are joined where their cosine is at least τ = {tau:g}.",
        f"{total:,} edges between {n:,} tokens.",
        says,
        "1. GSP: what repeats",
    )


def _describe_survivors(steps: ScriptSteps, token: int) -> Step:
    below = int((steps.redundancy < steps.redundancy[token]).sum())
    stays = "stays" if token in steps.survivors else "goes"
    return Step(
        "Survivors",
        "The least redundant tokens stay.",
        f"{len(steps.survivors):,} of {len(steps.redundancy):,} stay.",
        f"{stays}: {below:,} tokens are less redundant than it.",
        "1. GSP: what repeats",
    )


def _describe_relevance(steps: ScriptSteps, token: int) -> Step:
    above = int((steps.relevance > steps.relevance[token]).sum())
    spaces = {"clip": "CLIP's", "llm": "the LLM's"}
    where = f"by {spaces.get(str(steps.source), str(steps.source))} embeddings" if steps.source else "no question"
    return Step(
        "Relevance",
        "Each token's cosine to the question, scaled from 0 to 1 within the image.",
        f"Mean {float(steps.relevance.mean()):.2f}, {where}.",
        f"has relevance {float(steps.relevance[token]):.3f}; {above:,} tokens have more.",
        "2. QCRS: what the question is about",
    )


def _describe_order(steps: ScriptSteps, token: int) -> Step:
    if token in steps.order:
        rank = steps.order.index(token)
        says = f"is choice {rank + 1:,}; it adds {steps.gains[rank]:.3g} (the first one added {steps.gains[0]:.3g})."
        if rank:
            nearest = max(steps.order[:rank], key=lambda other: float(steps.cosines[token, other]))
            says += f" Most alike of those before it: token {nearest}, cosine {steps.cosines[token, nearest]:.3f}."
    else:
        nearest = max(steps.order, key=lambda other: float(steps.cosines[token, other]))
        says = (
            f"is not among the first {len(steps.order):,} choices; most alike of them: token {nearest}, "
            f"cosine {steps.cosines[token, nearest]:.3f}."
        )
    return Step(
        "Order of choice",
        "One token after another: what is relevant, and unlike those that were chosen before (a determinantal point "
        "process, greedily).",
        f"{len(steps.order):,} choices, from {steps.gains[0]:.3g} down to {steps.gains[-1]:.3g}.",
        says,
        "3. QCSP: relevant, and different from each other",
    )


def _describe_fusion(steps: ScriptSteps, token: int) -> Step:
    rule, first = steps.script.fusion, set(steps.order[: steps.m])
    survivors, both = set(steps.survivors), set(steps.order[: steps.m]) & set(steps.survivors)
    rules = {
        "supplement": "What both keep stays; the greedy's next choices fill it up.",
        "filter": "The greedy chooses among the survivors alone.",
        "released": "The greedy's choices stay, whatever the graph says.",
    }
    if token in steps.kept:
        filled = token not in first or (rule == "supplement" and token not in survivors)
        says = "is kept: it fills the set up." if filled else "is kept."
    elif token in first:
        says = "is dropped: the greedy chose it, but the graph did not let it through."
    else:
        says = "is dropped: the greedy did not choose it in time."
    found = f"{len(both):,} by both, {steps.m - len(both):,} to fill up: {steps.m:,} tokens are kept."
    return Step("Fusion", rules[rule], found, says, "4. Fusion")
