"""Where the images lie that are to be cut between a decoder's layers, and what is to be left of them."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.pruning.layout import Layout
from vlprune.pruning.prompt_images import PromptImage
from vlprune.record import Record


@dataclass
class CutGroup:
    """Images, or tiles or frames, of one size, and what each stage leaves of them.

    `rows` (U, 1) and `columns` (U, n) say where they are in the sequence as it is now, `tokens` (U, n) which of their
    image's candidates they are; `owners` are the images' places in the batch. `text` (U, T) is True for text behind
    the image, `host` are the rows on the CPU. `history` collects the tokens that are left after each stage, `scores`
    the tokens at the first cut and what it went by.
    """

    rows: Tensor
    columns: Tensor
    tokens: Tensor
    owners: list[tuple[int, int]]
    steps: tuple[Any, ...]
    text: Tensor
    host: list[int] = field(default_factory=list)
    weights: Tensor | None = None
    history: list[Tensor] = field(default_factory=list)
    scores: tuple[Tensor, Tensor] | None = None

    def repeated(self, copies: int, start: int, device: torch.device) -> "CutGroup":
        """The same on a device, for `copies` of every row side by side, in columns counted from `start`."""
        rows = (self.rows * copies + torch.arange(copies)).reshape(-1, 1)
        columns, tokens, text = (
            part.repeat_interleave(copies, dim=0).to(device) for part in (self.columns - start, self.tokens, self.text)
        )
        host = rows[:, 0].tolist()
        return CutGroup(rows.to(device), columns, tokens, self.owners, self.steps, text, host)


@dataclass(frozen=True)
class LayerPlan:
    """What is to be cut from the columns `start` to `stop` of a prompt; all tensors are on the CPU.

    `last` (B, 1) is the column of each row's last token, `text` (B, T) are columns of text, `real` counts the tokens
    of each row.
    """

    groups: list[CutGroup]
    last: Tensor
    text: Tensor
    real: list[int]
    start: int
    stop: int


def plan_layers(
    method: Any,
    layers: int,
    images: list[PromptImage],
    records: list[Record],
    layout: Layout,
    start: int,
    variable_length: bool,
) -> LayerPlan | None:
    """Where the images that are left in a prompt lie, and what each stage is to keep of them; None if that is all.

    `records` are those of `images`; `start` is the number of columns that a cache holds.
    """
    mask = layout.mask.cpu().bool()
    pools, visual = _pool_images(method, images, records, layout, mask, variable_length)
    last = torch.where(mask, torch.arange(layout.after), -1).amax(dim=1, keepdim=True)
    text, words = _text_columns(mask & ~visual, start, last)
    groups = []
    for (n, share), pool in pools.items():
        rows = torch.tensor([[image.row] for image, _, _ in pool])
        columns, tokens = (torch.stack(part) for part in list(zip(*pool))[1:])
        behind = words[rows[:, 0]] & (text[rows[:, 0]] > columns[:, -1:])
        behind |= ~behind.any(dim=1, keepdim=True) & (text[rows[:, 0]] == last[rows[:, 0]])
        owners = [(image.row, image.image) for image, _, _ in pool]
        budget = Budget.of(method.keep)
        relative = budget.ratio is not None or budget.layer_average is not None  # to n: the method works out the counts
        steps = (method if relative else replace(method, keep=share)).layer_budgets(n, layers)
        groups.append(CutGroup(rows, columns, tokens, owners, steps, behind))
    if all(step.keep == group.tokens.shape[1] for group in groups for step in group.steps):
        return None
    return LayerPlan(groups, last, text, mask[:, start:].sum(dim=1).tolist(), start, layout.after)


Pools = dict[tuple[int, int], list[tuple[PromptImage, Tensor, Tensor]]]
"""By number of tokens and budget: images, or their tiles or frames, with their columns and tokens."""


def _pool_images(
    method: Any,
    images: list[PromptImage],
    records: list[Record],
    layout: Layout,
    mask: Tensor,
    variable_length: bool,
) -> tuple[Pools, Tensor]:
    """What is left of the images, by size and budget, and (B, S) which columns of the prompt are visual."""
    place = torch.full((len(mask), layout.before), -1)  # from the columns before to those after
    place.scatter_(1, layout.index.cpu(), torch.where(mask, torch.arange(layout.after), -1))
    left = {(record.row, record.image): record.kept.cpu() for record in records}
    visual = torch.zeros_like(mask)
    pools: Pools = {}
    for image in images:
        shape, kept = image.encoded.shape, left[image.row, image.image]
        everywhere = place[image.row, image.columns]
        visual[image.row, everywhere[everywhere >= 0]] = True
        own = [kept[torch.isin(kept, part.tokens)] for part in shape.parts]
        shares = Budget.of(method.keep).shares(shape.kind, [len(part) for part in own], variable_length)
        for tokens, share in [(kept, shares)] if isinstance(shares, int) else list(zip(own, shares)):
            columns, order = place[image.row, image.columns[shape.candidates[tokens]]].sort()
            if len(tokens):
                pools.setdefault((len(tokens), share), []).append((image, columns, tokens[order]))
    return pools, visual


def _text_columns(words: Tensor, start: int, last: Tensor) -> tuple[Tensor, Tensor]:
    """(columns (B, T) of text from `start` on and of the last token, which of these are text and no filling)."""
    words = words.clone()
    words[:, :start] = False
    words.scatter_(1, last, True)
    size = int(words.sum(dim=1).max())
    columns = (~words).int().argsort(dim=1, stable=True)[:, :size]
    real = words.gather(1, columns)
    return torch.where(real, columns, last), real


def add_layer_cuts(records: list[Record], groups: list[CutGroup], cuts: list[int], depth: int) -> list[Record]:
    """The records, with what was kept of their images between the layers."""
    pools: dict[tuple[int, int], list[tuple[CutGroup, int]]] = {}
    for group in groups:
        copies = len(group.rows) // len(group.owners)  # of one row, as for beams: they are alike
        for i, owner in enumerate(group.owners):
            pools.setdefault(owner, []).append((group, i * copies))
    return [
        _add_cuts(record, pools[record.row, record.image], cuts, depth)
        if (record.row, record.image) in pools
        else record
        for record in records
    ]


def _add_cuts(record: Record, pools: list[tuple[CutGroup, int]], cuts: list[int], depth: int) -> Record:
    left = [torch.cat([group.history[s][i] for group, i in pools]).sort().values for s in range(len(cuts))]
    ranking = record.ranking
    scored = [(group.scores, i) for group, i in pools if group.scores is not None]
    if scored:
        tokens, scores = (torch.cat([pair[k][i] for pair, i in scored]) for k in (0, 1))
        ranking = scores.new_zeros(record.before).scatter(0, tokens, scores)
    return replace(
        record,
        kept=left[-1],
        after=len(left[-1]),
        ranking=ranking,
        stages=tuple(zip(cuts, left)),
        entered=record.entering,
        layers=depth,
    )
