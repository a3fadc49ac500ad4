"""Pruned decoding written the slow way: one sample at a time, no cache, no padding, no hooks.

Shares nothing with the package but the functions of `vlprune.selection`, which have their own tests.
"""

from dataclasses import dataclass, field

import torch

from tests.support.families.case import Sample
from vlprune.selection import fuse, graph_keep, graph_scores, greedy_map_features, relevance_scores, select_script


@dataclass
class Prompt:
    """What the language model is to see, token by token.

    `places` are positions in the whole prompt, 3-D ones as (t, h, w); `after` is the next token's.
    """

    ids: list = field(default_factory=list)
    vectors: list = field(default_factory=list)
    places: list = field(default_factory=list)
    levels: list = field(default_factory=list)
    blocks: list = field(default_factory=list)
    after: int = 0

    def copy(self):
        lists = (self.ids, self.vectors, self.places, self.levels, self.blocks)
        return Prompt(*(list(one) for one in lists), self.after)


# --- which candidates are kept ---


def dpp(features, m, question, redundancy=None):
    return sorted(greedy_map_features(features[None], torch.ones(1, len(features)), m)[0].tolist())


def script(features, m, question, redundancy=None):
    """`redundancy` (n,), where given, is the graph's verdict from a larger set of tokens."""
    if redundancy is None:
        return select_script(features[None], question[None], m, fusion="supplement").kept[0].tolist()
    relevance = relevance_scores(features[None], question[None])
    order = greedy_map_features(features[None], relevance, min(2 * m, len(features)))
    return fuse(order, graph_keep(redundancy[None], m), m, rule="supplement")[0].tolist()


METHODS = {"dpp": dpp, "script": script}


def everything(visual, features, question):
    return list(range(len(features)))


def total(method, m):
    """At most m tokens of an image or of a whole video; a float is a ratio."""

    def choose(visual, features, question):
        n = len(features)
        count = max(1, int(m * n + 0.5)) if isinstance(m, float) else min(m, n)
        return METHODS[method](features, count, question)

    return choose


def competing(method, quota):
    """The quota of a part of this kind of visual times its parts, wherever the tokens are best spent."""

    def choose(visual, features, question):
        return total(method, quota[visual.kind] * len(visual.parts))(visual, features, question)

    return choose


def each(method, quota):
    """The quota of every part; a video's graph looks across frames."""

    def choose(visual, features, question):
        redundancy = graph_scores(features[None])[0]
        kept = []
        for members in visual.members:
            shared = redundancy[members] if visual.kind == "video" else None
            count = min(quota[visual.kind], len(members))
            kept += [members[i] for i in METHODS[method](features[members], count, question, shared)]
        return sorted(kept)

    return choose


def given(kept):
    """What is to be kept of one image or video after another."""
    left = iter(kept)
    return lambda visual, features, question: next(left)


# --- the sequence ---


def question(case, model, sample):
    """Embeddings (l, d) of the words after the last visual token."""
    last = max(i for i, token in enumerate(sample.ids) if token in case.placeholders.values())
    ids = [token for token in sample.ids[last + 1 :] if token not in case.special]
    return model.get_input_embeddings()(torch.tensor(ids))


@torch.no_grad()
def grow(case, model, prompt, sample, choose):
    """`prompt` with a sample behind it, and what was kept of each of the sample's images and videos."""
    prompt = prompt.copy()
    blocks = case.blocks(sample, len(prompt.ids))
    words = model.get_input_embeddings()(torch.tensor(sample.ids))
    tokens = {kind: [] for kind in case.placeholders}  # of each kind: (visual, index, stays, vector, levels)
    chosen = []
    for visual in sample.visuals:
        features, levels = case.encode(model, visual)
        assert len(features) == len(visual.tokens)
        kept = choose(visual, features[visual.candidates], question(case, model, sample))
        chosen.append(kept)
        stays = set(visual.staying(kept))
        for i in range(len(features)):
            tokens[visual.kind].append((visual, i, i in stays, features[i], [level[i] for level in levels]))
    kinds = {token: kind for kind, token in case.placeholders.items()}
    place, in_run = prompt.after, 0
    for token, word, block in zip(sample.ids, words, blocks):
        if token in kinds:
            visual, i, stays, vector, levels = tokens[kinds[token]].pop(0)
            here = tuple(place + step for step in visual.tokens[i].offset) if case.positions == ("grid",) else place
            in_run += 1
            if case.positions != ("grid",):
                place += 1
            elif in_run == visual.runs[0]:  # the runs of one visual are equally long
                place, in_run = place + visual.advance, 0
        else:
            stays, vector, levels = True, word, []
            here = (place,) * 3 if case.positions == ("grid",) else place
            place += 1
        if stays:
            prompt.ids.append(token)
            prompt.vectors.append(vector)
            prompt.places.append(here)
            prompt.levels.append(levels)
            prompt.blocks.append(block)
    assert not any(tokens.values())
    prompt.after = place
    return prompt, chosen


def logits(case, model, prompt, original=False):
    """(S, V) of the whole sequence."""
    places = prompt.places if original or case.positions == ("grid",) else list(range(len(prompt.ids)))
    return model.lm_head(case.states(model, prompt, places))


@torch.no_grad()
def decode(case, model, prompt, steps, original=False):
    """The greedy answer."""
    answer = []
    for _ in range(steps):
        answer.append(int(logits(case, model, prompt, original)[-1].argmax()))
        prompt, _ = grow(case, model, prompt, Sample(answer[-1:]), None)
    return answer


@torch.no_grad()
def beams(case, model, prompt, steps, width):
    """The best answer of a beam search in which nothing ends."""
    running = [(0.0, [], prompt)]
    for _ in range(steps):
        further = []
        for score, answer, sequence in running:
            values, tokens = logits(case, model, sequence)[-1].log_softmax(-1).topk(width)
            further += [(score + float(v), [*answer, int(t)], sequence) for v, t in zip(values, tokens)]
        best = sorted(further, key=lambda one: -one[0])[:width]
        running = [(s, a, grow(case, model, sequence, Sample(a[-1:]), None)[0]) for s, a, sequence in best]
    return running[0][1]


def prompts(case, model, samples, choose):
    """Of each sample alone: its sequence, and what was kept."""
    return [grow(case, model, Prompt(), sample, choose) for sample in samples]


def answers(case, model, samples, choose, steps, original=False):
    """(greedy answers (B, steps), kept candidates of every image and video in reading order)."""
    found = prompts(case, model, samples, choose)
    tokens = [decode(case, model, prompt, steps, original) for prompt, _ in found]
    return torch.tensor(tokens), [kept for _, chosen in found for kept in chosen]
