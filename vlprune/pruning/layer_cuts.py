"""Cut a decoder's sequence between its layers.

The decoder's own loop hands the positions and the mask of the whole sequence to every layer. A hook before each layer
behind a cut puts those of the tokens that are left in their place; the hook before the first layer behind a cut
also shortens the hidden states. In the end they are put back to where they were, with zeros between. What the
layers behind a cut hold of a sequence is noted in the KV cache that it describes, so that later calls go on from there.

A *column* is a place in the sequence that enters the decoder; a *stage* is the layers from one cut to the next.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlprune.pruning.generation_settings import cache_length
from vlprune.pruning.layer_attention import attention_rows, check_layers
from vlprune.pruning.layer_plan import Group, Plan
from vlprune.pruning.layout import shorten

ATTRIBUTE = "_vlprune_stages"


@dataclass(frozen=True)
class Held:
    """What the layers of a stage hold of the first `before` columns: `mask` (B, S), 0 where padded.

    Up to column `least`, images lie: a cache cannot be cut back to fewer.
    """

    mask: Tensor
    before: int
    least: int


@dataclass(frozen=True)
class _Window:
    """The tokens of one forward that a stage sees: their columns (B, c), whether real (B, c), real ones per row."""

    index: Tensor
    mask: Tensor
    real: list[int]


class Stages:
    """The cuts of one method in one model. `done` is told what each stage kept of each image."""

    def __init__(self, model: Any, method: Any, renumber: bool, done: Callable[[list[Group]], None]) -> None:
        check_layers(model)
        self.decoder, self.method, self.renumber, self._done = model.get_decoder(), method, renumber, done
        self.layers = list(self.decoder.layers)
        self.cuts = sorted(dict(replace(method, keep=1.0).stages(1, len(self.layers))))
        replace(method, keep=1.0).steps(1, len(self.layers))  # refuses layers that the model has not
        self._run: _Run | None = None
        #: What the next forward of the decoder is to cut, and the labels that go with it.
        self.plan: Plan | None = None
        self.labels: Tensor | None = None

    def hooks(self) -> list[Any]:
        """Put the hooks in place."""
        handles = [
            layer.register_forward_pre_hook(self._before_layer(number), with_kwargs=True)
            for number, layer in enumerate(self.layers)
        ]
        return [*handles, self.decoder.register_forward_hook(self._after, with_kwargs=True, always_call=True)]

    def open(self, kwargs: dict[str, Any], deep: list[Tensor]) -> bool:
        """The decoder begins, with these arguments. Whether it is to cut, and so adds `deep` to its layers itself."""
        plan, labels, self.plan, self.labels = self.plan, self.labels, None, None
        if plan is not None and self.decoder.training and getattr(self.decoder, "gradient_checkpointing", False):
            raise ValueError(f"{self.method.name} cannot drop tokens with gradient checkpointing: switch it off.")
        self._run = _Run(self, plan, kwargs.get("attention_mask"), deep if plan is not None else [], labels)
        return plan is not None

    def _before_layer(self, number: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._run is None:
                return None
            hidden = args[0] if args else kwargs["hidden_states"]
            changed = self._run.before(number, module, hidden, kwargs)
            if changed is None:
                return None
            hidden, more = changed
            kwargs = {**kwargs, **more}
            if args:
                return (hidden, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": hidden}

        return hook

    def _after(self, module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        run, self._run = self._run, None
        if run is None or output is None or run.plan is None or not run.groups:
            return None
        run.remember()
        self._done(run.groups)
        if isinstance(output, tuple):
            return (run.put_back(output[0]), *output[1:])
        output.last_hidden_state = run.put_back(output.last_hidden_state)
        return output


class _Run:
    """One forward of the decoder."""

    def __init__(self, seam: Stages, plan: Plan | None, mask: Any, deep: list[Tensor], labels: Tensor | None) -> None:
        self.seam, self.plan, self.given, self.deep, self.labels = seam, plan, mask, deep, labels
        self.groups: list[Group] = []
        self.windows: list[_Window] = []
        self.views: dict[int, dict[str, Any]] = {}
        self.active = False

    def _begin(self, hidden: Tensor, cache: Any) -> None:
        """Before the first layer: what the cache holds, and what comes."""
        seam, plan = self.seam, self.plan
        rows, size = hidden.shape[:2]
        self.cache, self.start = cache, cache_length(cache)
        if self.start == 0 and hasattr(cache, ATTRIBUTE):
            delattr(cache, ATTRIBUTE)  # a static cache may have been used before
        self.past: list[Held | None] = getattr(cache, ATTRIBUTE, None) or [None] * len(seam.cuts)
        self.active = plan is not None or any(held is not None for held in self.past)
        if not self.active:
            return
        if any(held is not None and self.start < held.least for held in self.past):
            raise ValueError("past_key_values was cut back into an image of which later layers hold fewer tokens.")
        self.entering = _padding(self.given, rows, self.start + size, hidden.device)
        real = []
        if plan is not None:
            if self.start != plan.start or self.start + size < plan.stop:
                raise ValueError(f"{seam.method.name} needs the whole prompt in one forward: no prefill_chunk_size.")
            copies, tail = rows // len(plan.real), self.start + size - plan.stop
            real = [count + tail for count in plan.real for _ in range(copies)]
            self.groups = [group.repeated(copies, self.start, hidden.device) for group in plan.groups]
            look = (plan.text if seam.method.uses_raters else plan.last) - self.start
            self.look = look.repeat_interleave(copies, dim=0).to(hidden.device)
            self._weigh(hidden)
        every = torch.arange(size, device=hidden.device).expand(rows, -1)
        self.windows = [_Window(every, self.entering[:, self.start :], real)]
        self.inputs = hidden

    @torch.no_grad()
    def _weigh(self, embeds: Tensor) -> None:
        """Whose attention counts how much for each image."""
        for group in self.groups:
            group.weights = torch.ones(len(group.rows), 1, device=embeds.device)
            if self.seam.method.uses_raters:
                text = embeds[group.rows, self.look[group.rows[:, 0]]]
                group.weights = self.seam.method.weigh(embeds[group.rows, group.columns], text, group.text)

    def before(self, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Any:
        """What a layer gets in place of these hidden states and arguments; None if that is right."""
        if number == 0:
            self._begin(hidden, kwargs.get("past_key_values"))
        if not self.active:
            return None
        cuts, stage = self.seam.cuts, len(self.windows) - 1
        if 0 < number <= len(self.deep):
            index = self.windows[stage].index
            hidden = hidden + self.deep[number - 1].gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
        if number in cuts:
            hidden = self._cut(stage, number, layer, hidden, kwargs)
            stage += 1
        if number + 1 in cuts:
            self.inputs = hidden
        return hidden, self._view(stage, number, hidden, kwargs)

    def _whole(self, stage: int) -> bool:
        """Whether a stage sees what enters."""
        return stage == 0 or (self.past[stage - 1] is None and self.windows[stage] is self.windows[0])

    def _front(self, stage: int) -> Tensor:
        """(B, P) which of the tokens that a stage's layers already hold are real."""
        held = self.past[stage - 1] if stage else None
        if held is None:
            return self.entering[:, : self.start]
        copies, over = divmod(len(self.entering), len(held.mask))
        if over:
            raise ValueError(f"past_key_values was filled by {len(held.mask)} rows and cannot go on with other ones.")
        mask = held.mask.repeat_interleave(copies, dim=0)
        if self.start <= held.before:
            return mask[:, : mask.shape[1] - (held.before - self.start)]
        return torch.cat([mask, self.entering[:, held.before : self.start]], dim=1)

    def _visible(self, stage: int) -> Tensor:
        """(B, P + c) which of the tokens that a stage's layers see are real."""
        return torch.cat([self._front(stage), self.windows[stage].mask], dim=1)

    def _view(self, stage: int, number: int, hidden: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What the layers of a stage get in place of the whole sequence's positions and mask."""
        if self._whole(stage):
            return {}
        if stage not in self.views:
            from transformers.masking_utils import create_causal_mask

            mask = create_causal_mask(
                config=self.seam.decoder.config,
                inputs_embeds=hidden,
                attention_mask=self._visible(stage),
                past_key_values=self.cache,
                layer_idx=number,
            )
            # Positions serve only flash attention here, which reads gaps in them as the ends of packed sequences.
            view = {"attention_mask": mask, "position_ids": None}
            self.views[stage] = {**view, "position_embeddings": self._rotary(stage, hidden, kwargs)}
        return self.views[stage]

    def _rotary(
        self, stage: int, hidden: Tensor, kwargs: dict[str, Any], front: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The position embeddings of a stage's tokens, behind those that it holds (or `front` in their place)."""
        window = self.windows[stage]
        if self.seam.renumber:
            front = self._front(stage) if front is None else front
            places = kwargs["position_ids"].expand(len(hidden), -1)
            real = (~self.windows[0].mask).int().argsort(dim=1, stable=True)  # the columns of real tokens, in order
            rank = (window.mask.long().cumsum(dim=1) - 1).clamp(min=0)
            lost = self.entering[:, : self.start].sum(dim=1, keepdim=True) - front.sum(dim=1, keepdim=True)
            return self.seam.decoder.rotary_emb(hidden, places.gather(1, real.gather(1, rank)) - lost)
        if window is self.windows[0]:
            return kwargs["position_embeddings"]
        cos, sin = (
            part.expand(len(hidden), -1, -1).gather(1, window.index[..., None].expand(-1, -1, part.shape[-1]))
            for part in kwargs["position_embeddings"]
        )
        return cos, sin

    def _cut(self, stage: int, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """From a stage to the next."""
        window = self.windows[stage]
        steps = [group.steps[stage] for group in self.groups]
        if all(step.keep == group.tokens.shape[1] for step, group in zip(steps, self.groups)):
            self.windows.append(window)
            for group in self.groups:
                group.history.append(group.tokens)
            return hidden
        attention = self._attention(stage, number, layer, hidden, kwargs)
        drop = torch.zeros_like(window.mask)
        size = drop.shape[1]
        order = torch.arange(size, device=hidden.device).repeat(len(drop), 1) * (size + 1)
        lost = [0] * len(drop)
        left = []
        for group, step in zip(self.groups, steps):
            if step.keep == group.tokens.shape[1]:
                left.append(group.columns)
                continue
            assert group.weights is not None
            scores = (attention[group.rows[:, 0]] * group.weights[..., None]).sum(dim=1).gather(1, group.columns)
            if group.scores is None:
                group.scores = group.tokens, scores
            chosen = self.seam.method.cut(scores, hidden[group.rows, group.columns], step.keep)
            stay = chosen.kept
            if chosen.centres is not None:
                at = group.columns.gather(1, chosen.centres)
                hidden = hidden.index_put((group.rows, at), chosen.merged)
                order[group.rows, at] = group.columns[:, -1:] * (size + 1) + 1 + torch.arange(at.shape[1]).to(at)
                stay = torch.cat([stay, chosen.centres], dim=1)
            drop[group.rows, group.columns] = True
            drop[group.rows, group.columns.gather(1, stay)] = False
            for row in group.host:
                lost[row] += group.tokens.shape[1] - stay.shape[1]
            left.append(group.columns.gather(1, stay))
            group.tokens = group.tokens.gather(1, stay)
        mask = window.mask.long()
        layout = shorten(mask, mask, drop, order.argsort(dim=1).argsort(dim=1), lost, window.real)
        place = torch.zeros_like(mask)  # from the columns before to those after
        place.scatter_(1, layout.index, torch.arange(layout.after, device=mask.device).expand_as(layout.index))
        for group, columns in zip(self.groups, left):
            group.columns = place[group.rows, columns]
            group.history.append(group.tokens)
        self.look = place.gather(1, self.look)
        real = [count - gone for count, gone in zip(window.real, lost)]
        self.windows.append(_Window(window.index.gather(1, layout.index), layout.mask.bool(), real))
        return layout.gather(hidden)

    def _attention(self, stage: int, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """(B, T, c) the attention that a cut goes by, of the layer before it or of the one behind it.

        The latter holds what the cut has already left of earlier turns.
        """
        front = self._front(stage + 1 if self.seam.method.score_from_next_layer else stage)
        if not self.seam.method.score_from_next_layer:
            number, layer, hidden = number - 1, self.seam.layers[number - 1], self.inputs
        rotary = self._rotary(stage, hidden, kwargs, front)
        visible = torch.cat([front, self.windows[stage].mask], dim=1)
        past = None
        if front.shape[1]:
            past = self.cache.layers[number].keys[:, :, : front.shape[1]]
            if past.shape[2] != front.shape[1]:
                raise ValueError("past_key_values does not hold its keys as they are: new images need one that does.")
        return attention_rows(layer, hidden, rotary, self.look, visible, past)

    def remember(self) -> None:
        """Note in the cache what the later layers hold now."""
        assert self.plan is not None
        if self.labels is not None:
            gone = self._gone()
            self.labels.masked_fill_(gone, -100)
            self.labels[:, 1:].masked_fill_(gone[:, :-1], -100)
        if self.cache is None:
            return
        least = max(int(group.columns[:, -1].max()) for group in self.plan.groups) + 1
        held = [
            None if self._whole(stage) else Held(self._visible(stage), self.entering.shape[1], least)
            for stage in range(1, len(self.windows))
        ]
        setattr(self.cache, ATTRIBUTE, held)

    def _gone(self) -> Tensor:
        """(B, q) the tokens that came in and are gone."""
        end = self.windows[-1]
        stayed = torch.zeros_like(self.windows[0].mask).scatter(1, end.index, end.mask)
        return self.windows[0].mask & ~stayed

    def put_back(self, states: Tensor) -> Tensor:
        """The last hidden states, back in the columns that they came from."""
        end = self.windows[-1]
        if end is self.windows[0]:
            return states
        index = end.index[..., None].expand(-1, -1, states.shape[-1])
        whole = states.new_zeros(len(states), self.windows[0].index.shape[1], states.shape[-1])
        return whole.scatter(1, index, states * end.mask[..., None].to(states.dtype))


def _padding(mask: Any, rows: int, size: int, device: torch.device) -> Tensor:
    """(B, size) which columns are no padding, by the mask that the decoder was given."""
    if isinstance(mask, dict):
        mask = mask.get("full_attention")
    if mask is None:
        return torch.ones(rows, size, dtype=torch.bool, device=device)
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        raise ValueError("attention_mask must be 2-D (rows, columns) for tokens to be dropped inside the LLM.")
    if mask.ndim == 4:  # made by `generate` for a static cache: the last token sees all that is no padding
        mask = mask[:, 0, -1] if mask.dtype == torch.bool else mask[:, 0, -1] == 0
    return mask[:, :size].to(device).bool().expand(rows, -1)
