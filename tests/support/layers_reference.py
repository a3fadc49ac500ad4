"""The methods inside the LLM, written the slow way from their papers: one sample, no cache, no padding, float64.

The decoder's layers are worked through by hand, whole attention maps and all. Nothing is shared with the library.
"""

import copy
import math
from dataclasses import dataclass, field

import torch

from tests.support.families import reference as prompts


@dataclass
class Image:
    """The columns of an image's candidates (numbered in `tokens`), which row looks at it, and the text behind it."""

    columns: list
    tokens: list
    asker: int
    text: list
    raters: list = field(default_factory=list)
    stages: list = field(default_factory=list)


@dataclass
class Row:
    """A prompt as the LLM sees it: vectors, positions, levels, its images, and how many of its columns are prompt."""

    prompt: prompts.Prompt
    images: list


def row(case, model, sample, choose=prompts.everything, before=None):
    """A sample, after another row's prompt if one is given."""
    start = prompts.Prompt() if before is None else before.prompt
    size = len(start.ids)
    prompt, chosen = prompts.grow(case, model, start, sample, choose)
    kinds = {token: kind for kind, token in case.placeholders.items()}
    waiting = {kind: [] for kind in case.placeholders}
    for number, (visual, kept) in enumerate(zip(sample.visuals, chosen)):
        for i in visual.staying(kept):
            candidate = visual.candidates.index(i) if i in visual.candidates else None
            waiting[visual.kind].append((number, candidate))
    found = [([], []) for _ in sample.visuals]
    words = []
    for column in range(size, len(prompt.ids)):
        kind = kinds.get(prompt.ids[column])
        if kind is None:
            words.append(column)
            continue
        number, candidate = waiting[kind].pop(0)
        if candidate is not None:
            found[number][0].append(column)
            found[number][1].append(candidate)
    last = len(prompt.ids) - 1
    images = [Image(c, t, last, [w for w in words if w > c[-1]] or [last]) for c, t in found]
    return Row(prompt, ([] if before is None else before.images) + images)


class Machine:
    """A decoder in float64, layer by layer."""

    def __init__(self, model):
        self.decoder = copy.deepcopy(model.get_decoder()).double()
        self.head = copy.deepcopy(model.lm_head).double()
        config = self.decoder.config
        self.heads, self.groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
        attention = self.decoder.layers[0].self_attn
        self.size = attention.head_dim
        rope = config.rope_parameters
        self.frequencies = [rope["rope_theta"] ** (-2 * i / self.size) for i in range(self.size // 2)]
        self.axes = [0] * (self.size // 2)
        sections = rope.get("mrope_section")
        if sections and rope.get("mrope_interleaved"):
            self.axes = [i % 3 if i < 3 * sections[i % 3] else 0 for i in range(self.size // 2)]
        elif sections:
            self.axes = [axis for axis, width in enumerate(sections) for _ in range(width)]

    def attention(self, layer, states, places):
        """(maps (heads, S, S), normed states): what the layer attends to, from the states that enter it."""
        own, normed = layer.self_attn, layer.input_layernorm(states)
        norms = [getattr(own, name, None) or (lambda x: x) for name in ("q_norm", "k_norm")]
        query, key = (
            norm(project(normed).view(len(states), -1, self.size))
            for norm, project in zip(norms, (own.q_proj, own.k_proj))
        )
        turn = self.turns(places)
        query, key = self.rotated(query, *turn), self.rotated(key, *turn)
        maps = []
        later = torch.ones(len(states), len(states)).triu(1).bool()
        for head in range(self.heads):
            logits = query[:, head] @ key[:, head // self.groups].T / math.sqrt(self.size)
            maps.append(logits.masked_fill(later, -math.inf).softmax(-1))
        return torch.stack(maps), normed

    def turns(self, places):
        angles = torch.tensor(
            [[f * (p[a] if isinstance(p, tuple) else p) for f, a in zip(self.frequencies, self.axes)] for p in places],
            dtype=torch.float64,
        )
        return angles.cos()[:, None], angles.sin()[:, None]

    def rotated(self, vectors, cos, sin):
        first, second = vectors.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def layer(self, layer, states, places):
        maps, normed = self.attention(layer, states, places)
        own = layer.self_attn
        values = own.v_proj(normed).view(len(states), -1, self.size)
        mixed = torch.stack([maps[h] @ values[:, h // self.groups] for h in range(self.heads)], dim=1)
        states = states + own.o_proj(mixed.flatten(1))
        return states + layer.mlp(layer.post_attention_layernorm(states)), maps

    @torch.no_grad()
    def run(self, row, method, grid=False):
        """(logits (S, V), the columns they belong to, how many each layer saw, the images with their stages)."""
        prompt = row.prompt
        states = torch.stack(prompt.vectors).double()
        columns = list(range(len(states)))
        places, levels = list(prompt.places), list(prompt.levels)
        images = [copy.deepcopy(image) for image in row.images]
        for image in images:
            image.raters = method.raters(states, image)
        seen, maps = [], None
        for number, layer in enumerate(self.decoder.layers):
            if number in method.layers:
                shown, at = maps, columns
                for asker in sorted({image.asker for image in images}):  # turn by turn
                    if method.ahead:  # what earlier turns lost, this layer never sees
                        shown, at = self.attention(layer, states, places)[0], columns
                    turn = [image for image in images if image.asker == asker]
                    for image in turn:
                        self.choose(image, method, number, shown.mean(0), at, states, columns)
                    columns, states, places = self.shortened(turn, columns, states, places)
                    if method.renumbered and not grid:
                        places = list(range(len(columns)))
            seen.append(len(columns))
            states, maps = self.layer(layer, states, places)
            deep = [levels[c][number] if number < len(levels[c]) else None for c in columns]
            states = torch.stack([s if d is None else s + d.double() for s, d in zip(states, deep)])
        logits = self.head(self.decoder.norm(states))
        return logits, columns, seen, images

    def choose(self, image, method, number, shown, at, states, columns):
        """Cut an image by the attention `shown`, whose rows and columns are `at`."""
        here, now = {column: i for i, column in enumerate(at)}, {column: i for i, column in enumerate(columns)}
        rows = [shown[here[rater]].tolist() for rater in image.raters]
        scores = [sum(row[here[column]] for row in rows) / len(rows) for column in image.columns]
        own = states[[now[column] for column in image.columns]]
        kept, centres, merged = method.cut(scores, own, method.count(image, number))
        stay = [*kept, *centres]
        image.end = image.columns[-1]
        image.means = dict(zip([image.columns[i] for i in centres], merged))
        image.gone = set(image.columns) - {image.columns[i] for i in kept}
        image.columns, image.tokens = [image.columns[i] for i in stay], [image.tokens[i] for i in stay]
        image.stages.append((number, sorted(image.tokens)))

    def shortened(self, images, columns, states, places):
        """The sequence without what is gone, and with the merged tokens behind the rest of their image."""
        gone = set().union(*(image.gone for image in images))
        ends = {image.end: image.means for image in images}
        fresh = []
        for i, column in enumerate(columns):
            if column not in gone:
                fresh.append((column, states[i], places[i]))
            for centre, mean in ends.get(column, {}).items():
                fresh.append((centre, mean, places[columns.index(centre)]))
        columns, states, places = (list(part) for part in zip(*fresh))
        return columns, torch.stack(states), places


def top(scores, m):
    """The indices of the m highest, ascending; of equals the first."""
    return sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:m])


@dataclass
class FastV:
    """Layer K - 1's attention, the last token's row."""

    keep: int
    layers: tuple
    renumbered = False
    ahead = False

    def raters(self, states, image):
        return [image.asker]

    def count(self, image, layer):
        return min(self.keep, len(image.columns))

    def cut(self, scores, states, keep):
        return top(scores, keep), [], []


@dataclass
class PyramidDrop(FastV):
    """A half, a quarter, an eighth of the first number, by the next layer's attention."""

    renumbered = True
    ahead = True

    def count(self, image, layer):
        image.first = getattr(image, "first", len(image.columns))
        return max(1, math.floor(image.first / 2 ** (1 + self.layers.index(layer)) + 0.5))


@dataclass
class SparseVLM(FastV):
    """The raters' rows; `keep` has one number per stage, and the best of the dropped are recycled."""

    recycle: bool = True

    @property
    def renumbered(self):
        return self.recycle

    def raters(self, states, image):
        shares = [0.0] * len(image.text)
        for column in image.columns:
            logits = (states[image.text] @ states[column]).tolist()
            whole = sum(math.exp(logit - max(logits)) for logit in logits)
            for i, logit in enumerate(logits):
                shares[i] += math.exp(logit - max(logits)) / whole / len(image.columns)
        mean = sum(shares) / len(shares)
        return [word for word, share in zip(image.text, shares) if share > mean] or image.text

    def count(self, image, layer):
        return min(self.keep[self.layers.index(layer)], len(image.columns))

    def cut(self, scores, states, keep):
        kept = top(scores, keep)
        rest = [i for i in range(len(scores)) if i not in kept]
        again = [rest[i] for i in top([scores[i] for i in rest], len(rest) * 3 // 10)] if self.recycle else []
        if not again:
            return kept, [], []
        centres, cluster = peaks(states[again], len(again) // 10 + 1)
        means = [states[[a for a, c in zip(again, cluster) if c == k]].mean(0) for k in range(len(centres))]
        return kept, [again[c] for c in centres], means


def peaks(points, count):
    """(centres, each point's cluster) by density peaks, five neighbours."""
    n, d = points.shape
    if n == 1:
        return [0], [0]
    apart = [((point - points).square().sum(-1) / d).sqrt().tolist() for point in points]
    density = []
    for i in range(n):
        near = sorted(apart[i][j] for j in range(n) if j != i)[:5]
        density.append(math.exp(-sum(x * x for x in near) / len(near)))
    weight = []
    for i in range(n):
        denser = [apart[i][j] for j in range(n) if (density[j], -j) > (density[i], -i)]
        weight.append(density[i] * (min(denser) if denser else max(apart[i])))
    centres = top(weight, count)
    cluster = [min(range(count), key=lambda k: (apart[i][centres[k]], k)) for i in range(n)]
    for k, centre in enumerate(centres):
        cluster[centre] = k
    return centres, cluster


def continued(case, model, row, tokens):
    """The row with generated tokens behind it."""
    prompt = row.prompt
    for token in tokens:
        prompt, _ = prompts.grow(case, model, prompt, prompts.Sample([token]), None)
    return Row(prompt, row.images)


def answer(case, model, machine, row, method, steps):
    """The greedy answer, the logits (steps, V) that it came from, and the images."""
    found, steps_logits, images = [], [], None
    for _ in range(steps):
        logits, _, _, images = machine.run(row, method, grid=case.positions == ("grid",))
        steps_logits.append(logits[-1])
        found.append(int(logits[-1].argmax()))
        row = continued(case, model, row, found[-1:])
    return found, torch.stack(steps_logits), images


def beams(case, model, machine, row, method, steps, width):
    """The best answer of a beam search in which nothing ends."""
    running = [(0.0, [])]
    for _ in range(steps):
        further = []
        for score, said in running:
            logits = machine.run(continued(case, model, row, said), method, grid=case.positions == ("grid",))[0]
            values, tokens = logits[-1].log_softmax(-1).topk(width)
            further += [(score + float(v), [*said, int(t)]) for v, t in zip(values, tokens)]
        running = sorted(further, key=lambda one: -one[0])[:width]
    return running[0][1]
