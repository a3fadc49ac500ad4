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

from vlprune.pruning.call_state import ForwardPass
from vlprune.pruning.check_selection import call_cut, check_cut, naming_method
from vlprune.pruning.generation_settings import cache_length
from vlprune.pruning.layer_attention import attention_rows, check_decoder
from vlprune.pruning.layer_plan import CutGroup
from vlprune.pruning.layout import drop_columns

#: Where a KV cache notes what its later layers hold.
CACHE_ATTRIBUTE = "_vlprune_stages"


@dataclass(frozen=True)
class HeldTokens:
    """What the layers of a stage hold of the first `before` columns: `mask` (B, S), 0 where padded.

    Up to column `least`, images lie: a cache cannot be cut back to fewer.
    """

    mask: Tensor
    before: int
    least: int


@dataclass(frozen=True)
class _StageTokens:
    """The tokens of one forward that a stage sees: their columns (B, c), whether real (B, c), real ones per row."""

    index: Tensor
    mask: Tensor
    real: list[int]


class _Cuts:
    """What one cut does to the sequence: states that change, columns that go, their order, how many each row loses.

    `left` are the columns (U, m) that stay of each group.
    """

    def __init__(self, window: _StageTokens, hidden: Tensor) -> None:
        self.hidden = hidden
        self.drop = torch.zeros_like(window.mask)
        rows, size = self.drop.shape
        self.order = torch.arange(size, device=hidden.device).repeat(rows, 1) * (size + 1)
        self.lost = [0] * rows
        self.left: list[Tensor] = []


class LayerCuts:
    """The hooks by which one method drops tokens between the layers of one model's decoder.

    `layers_cut_before` are the numbers of the layers that see fewer tokens than the one before.
    """

    def __init__(self, model: Any, method: Any, renumber: bool) -> None:
        check_decoder(model)
        self.decoder, self.method, self.renumber = model.get_decoder(), method, renumber
        self.layers = list(self.decoder.layers)
        with naming_method(method):
            self.layers_cut_before = sorted(dict(replace(method, keep=1.0).cut_schedule(1, len(self.layers))))
        replace(method, keep=1.0).layer_budgets(1, len(self.layers))  # refuses layers that the model has not
        self._pass: _DecoderPass | None = None

    def register(self, note_cuts: Callable[[list[CutGroup]], None], handles: list[Any]) -> None:
        """Put the hooks in place, and add their handles; `note_cuts` is told what each stage kept of each image."""

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            return self._after_decoder(output, note_cuts)

        for number, layer in enumerate(self.layers):
            handles.append(layer.register_forward_pre_hook(self._before_layer(number), with_kwargs=True))
        handles.append(self.decoder.register_forward_hook(after, with_kwargs=True, always_call=True))

    def start(self, attention_mask: Any, passed: ForwardPass) -> None:
        """The decoder begins, with this mask and with what the model's forward handed to it.

        Where it is to cut, the deepstack features are added here, to what is left.
        """
        cutting = passed.layer_plan is not None
        if cutting and self.decoder.training and getattr(self.decoder, "gradient_checkpointing", False):
            raise ValueError(f"{self.method.name} cannot drop tokens with gradient checkpointing: switch it off.")
        self._pass = _DecoderPass(self, attention_mask, passed)

    def _before_layer(self, number: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._pass is None:
                return None
            hidden = args[0] if args else kwargs["hidden_states"]
            changed = self._pass.before_layer(number, module, hidden, kwargs)
            if changed is None:
                return None
            hidden, more = changed
            kwargs = {**kwargs, **more}
            if args:
                return (hidden, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": hidden}

        return hook

    def _after_decoder(self, output: Any, note_cuts: Callable[[list[CutGroup]], None]) -> Any:
        done, self._pass = self._pass, None
        if done is None or output is None or done.plan is None or not done.groups:
            return None
        done.note_in_cache()
        note_cuts(done.groups)
        if isinstance(output, tuple):
            return (done.put_back(output[0]), *output[1:])
        output.last_hidden_state = done.put_back(output.last_hidden_state)
        return output


class _DecoderPass:
    """One forward of the decoder, from its first layer to its last."""

    def __init__(self, owner: LayerCuts, attention_mask: Any, passed: ForwardPass) -> None:
        self.owner, self.plan, self.given_mask, self.labels = owner, passed.layer_plan, attention_mask, passed.labels
        self.deepstack = passed.deepstack if self.plan is not None else []
        self.groups: list[CutGroup] = []
        self.windows: list[_StageTokens] = []
        self.views: dict[int, dict[str, Any]] = {}
        self.active = False

    def _begin(self, hidden: Tensor, cache: Any) -> None:
        """Before the first layer: what the cache holds, and what comes."""
        owner, plan = self.owner, self.plan
        rows, size = hidden.shape[:2]
        self.cache, self.start = cache, cache_length(cache)
        if self.start == 0 and hasattr(cache, CACHE_ATTRIBUTE):
            delattr(cache, CACHE_ATTRIBUTE)  # a static cache may have been used before
        self.past: list[HeldTokens | None] = getattr(cache, CACHE_ATTRIBUTE, None) or [None] * len(
            owner.layers_cut_before
        )
        self.active = plan is not None or any(held is not None for held in self.past)
        if not self.active:
            return
        if any(held is not None and self.start < held.least for held in self.past):
            raise ValueError("past_key_values was cut back into an image of which later layers hold fewer tokens.")
        self.entering = _padding(self.given_mask, rows, self.start + size, hidden.device)
        real = []
        if plan is not None:
            if self.start != plan.start or self.start + size < plan.stop:
                raise ValueError(f"{owner.method.name} needs the whole prompt in one forward: no prefill_chunk_size.")
            copies, tail = rows // len(plan.real), self.start + size - plan.stop
            real = [count + tail for count in plan.real for _ in range(copies)]
            self.groups = [group.repeated(copies, self.start, hidden.device) for group in plan.groups]
            scoring = (plan.text if owner.method.uses_raters else plan.last) - self.start
            self.scoring = scoring.repeat_interleave(copies, dim=0).to(hidden.device)
            self._weigh(hidden)
        every = torch.arange(size, device=hidden.device).expand(rows, -1)
        self.windows = [_StageTokens(every, self.entering[:, self.start :], real)]
        self.inputs = hidden

    @torch.no_grad()
    def _weigh(self, embeds: Tensor) -> None:
        """Whose attention counts how much for each image."""
        for group in self.groups:
            group.weights = torch.ones(len(group.rows), 1, device=embeds.device)
            if self.owner.method.uses_raters:
                text = embeds[group.rows, self.scoring[group.rows[:, 0]]]
                with naming_method(self.owner.method):
                    group.weights = self.owner.method.text_weights(embeds[group.rows, group.columns], text, group.text)

    def before_layer(self, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Any:
        """What a layer gets in place of these hidden states and arguments; None if that is right."""
        if number == 0:
            self._begin(hidden, kwargs.get("past_key_values"))
        if not self.active:
            return None
        cuts, stage = self.owner.layers_cut_before, len(self.windows) - 1
        if 0 < number <= len(self.deepstack):
            index = self.windows[stage].index
            hidden = hidden + self.deepstack[number - 1].gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))
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
                config=self.owner.decoder.config,
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
        if self.owner.renumber:
            front = self._front(stage) if front is None else front
            places = kwargs["position_ids"].expand(len(hidden), -1)
            real = (~self.windows[0].mask).int().argsort(dim=1, stable=True)  # the columns of real tokens, in order
            rank = (window.mask.long().cumsum(dim=1) - 1).clamp(min=0)
            lost = self.entering[:, : self.start].sum(dim=1, keepdim=True) - front.sum(dim=1, keepdim=True)
            return self.owner.decoder.rotary_emb(hidden, places.gather(1, real.gather(1, rank)) - lost)
        if window is self.windows[0]:
            return kwargs["position_embeddings"]
        cos, sin = (
            part.expand(len(hidden), -1, -1).gather(1, window.index[..., None].expand(-1, -1, part.shape[-1]))
            for part in kwargs["position_embeddings"]
        )
        return cos, sin

    def _cut(self, stage: int, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """From a stage to the next: the hidden states that are left."""
        window = self.windows[stage]
        steps = [group.steps[stage] for group in self.groups]
        if all(step.keep == group.tokens.shape[1] for step, group in zip(steps, self.groups)):
            self.windows.append(window)
            for group in self.groups:
                group.history.append(group.tokens)
            return hidden
        attention = self._attention(stage, number, layer, hidden, kwargs)
        made = _Cuts(window, hidden)
        for group, step in zip(self.groups, steps):
            if step.keep == group.tokens.shape[1]:
                made.left.append(group.columns)
            else:
                self._cut_group(group, step.keep, attention, made)
        mask = window.mask.long()
        layout = drop_columns(mask, mask, made.drop, made.order.argsort(dim=1).argsort(dim=1), made.lost, window.real)
        place = torch.zeros_like(mask)  # from the columns before to those after
        place.scatter_(1, layout.index, torch.arange(layout.after, device=mask.device).expand_as(layout.index))
        for group, columns in zip(self.groups, made.left):
            group.columns = place[group.rows, columns]
            group.history.append(group.tokens)
        self.scoring = place.gather(1, self.scoring)
        real = [count - gone for count, gone in zip(window.real, made.lost)]
        self.windows.append(_StageTokens(window.index.gather(1, layout.index), layout.mask.bool(), real))
        return layout.gather(made.hidden)

    def _cut_group(self, group: CutGroup, keep: int, attention: Tensor, made: "_Cuts") -> None:
        """Let the method keep `keep` tokens of each image of a group, and add to `made` what that means."""
        assert group.weights is not None
        scores = (attention[group.rows[:, 0]] * group.weights[..., None]).sum(dim=1).gather(1, group.columns)
        if group.scores is None:
            group.scores = group.tokens, scores
        chosen = call_cut(self.owner.method, scores, made.hidden[group.rows, group.columns], keep)
        check_cut(self.owner.method, chosen, scores, keep)
        stay = chosen.kept
        if chosen.centres is not None and chosen.merged is not None:
            at, size = group.columns.gather(1, chosen.centres), made.drop.shape[1]
            made.hidden = made.hidden.index_put((group.rows, at), chosen.merged)
            made.order[group.rows, at] = group.columns[:, -1:] * (size + 1) + 1 + torch.arange(at.shape[1]).to(at)
            stay = torch.cat([stay, chosen.centres], dim=1)
        made.drop[group.rows, group.columns] = True
        made.drop[group.rows, group.columns.gather(1, stay)] = False
        for row in group.host:
            made.lost[row] += group.tokens.shape[1] - stay.shape[1]
        made.left.append(group.columns.gather(1, stay))
        group.tokens = group.tokens.gather(1, stay)

    def _attention(self, stage: int, number: int, layer: Any, hidden: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """(B, T, c) the attention that a cut goes by, of the layer before it or of the one behind it.

        The latter holds what the cut has already left of earlier turns.
        """
        front = self._front(stage + 1 if self.owner.method.score_from_next_layer else stage)
        if not self.owner.method.score_from_next_layer:
            number, layer, hidden = number - 1, self.owner.layers[number - 1], self.inputs
        rotary = self._rotary(stage, hidden, kwargs, front)
        visible = torch.cat([front, self.windows[stage].mask], dim=1)
        return attention_rows(layer, hidden, rotary, self.scoring, visible, self._held_keys(number, front, visible))

    def _held_keys(self, number: int, front: Tensor, visible: Tensor) -> Tensor | None:
        """The keys that a layer's cache holds of the tokens `front`, or of all `visible` ones if it has seen them."""
        layers = [] if self.cache is None else self.cache.layers
        keys: Any = layers[number].keys if number < len(layers) else None  # some caches get their layers one by one
        length = keys.shape[2] if keys is not None and keys.ndim == 4 else 0  # a quantised cache has none
        seen = not self.owner.method.score_from_next_layer and length >= visible.shape[1]
        if seen and keys.device == visible.device:
            return keys[:, :, : visible.shape[1]]
        if length < front.shape[1]:
            raise ValueError("past_key_values does not hold its keys as they are: new images need one that does.")
        return keys[:, :, : front.shape[1]] if front.shape[1] else None

    def note_in_cache(self) -> None:
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
            None if self._whole(stage) else HeldTokens(self._visible(stage), self.entering.shape[1], least)
            for stage in range(1, len(self.windows))
        ]
        setattr(self.cache, CACHE_ATTRIBUTE, held)

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
