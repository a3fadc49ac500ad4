"""The model: drops tokens where vLLM asks for the embeddings of images, and puts those that are left in their place."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.integrations.vllm.families import QwenVL, ServedFamily
from vlprune.integrations.vllm.plugin import warn_if_untested
from vlprune.integrations.vllm.processor import FIELD
from vlprune.integrations.vllm.request import PruneRequest
from vlprune.integrations.vllm.settings import KEY, Settings
from vlprune.integrations.vllm.worker import ItemEncoder, TokenChooser


class PrunedModel:
    """Before a model class of vLLM."""

    served: ClassVar[ServedFamily]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        warn_if_untested()
        config, scheduler = vllm_config.model_config.hf_config, vllm_config.scheduler_config
        settings = Settings.from_dict(getattr(config, KEY, None))
        model_config = vllm_config.model_config
        self.item_encoder = ItemEncoder(self, self.served, settings, scheduler.max_num_batched_tokens)
        self.token_chooser = TokenChooser(
            self, self.served, settings, model_config.get_hidden_size(), model_config.dtype
        )

    def load_weights(self, weights: Any) -> Any:
        """vLLM's own; and forgets what other weights encoded."""
        self.item_encoder.cache.clear()
        return super().load_weights(weights)  # type: ignore[misc]

    def embed_multimodal(self, **batch: Any) -> Any:
        """What is left of each image or video, (m, d)."""
        modality = next((kind for kind in ("image", "video") if FIELD.format(kind) in batch), None)
        if modality is None:
            return super().embed_multimodal(**batch)  # type: ignore[misc]
        requests = [PruneRequest.from_tensor(data) for data in batch.pop(FIELD.format(modality))]
        items = self.served.split(self.config, modality, batch)  # type: ignore[attr-defined]
        embed, out = super().embed_multimodal, []  # type: ignore[misc]
        for piece in self.item_encoder.pieces(modality, items):
            some, asked = [items[i] for i in piece], [requests[i] for i in piece]
            encoded = self.item_encoder.encode(modality, some, [one.image for one in asked], embed)
            left = self.token_chooser.choose(encoded, asked)
            out += [_agreed(self._placed(modality, item, *one)) for item, one in zip(some, left)]
        return tuple(out)

    def _placed(self, modality: str, item: Any, features: Tensor, at: Tensor) -> Tensor:
        """What is handed to vLLM for one item: its features (m, d)."""
        return features

    def get_encoder_cudagraph_config(self) -> Any:
        """No kind of input: a CUDA graph of the encoder would go past `embed_multimodal`."""
        config = super().get_encoder_cudagraph_config()  # type: ignore[misc]
        config.modalities = []
        return config


def _agreed(values: Tensor) -> Tensor:
    """The values of the first worker of a tensor-parallel group, so that a tie cannot be broken in two ways."""
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    return group.broadcast(values.contiguous(), src=0) if group.world_size > 1 else values


#: How a position is written into features: two digits to this base, each of which any float of 16 bits can hold.
BASE = 256
#: Features that carry the positions of a token: two digits each of time, height and width.
DIGITS = 6


class PrunedGridModel(PrunedModel):
    """The same for models that place tokens in time, height and width (m-RoPE).

    Which of an image's places stay is known only where its embeddings are made. vLLM is told the position of the
    image's first token for all of them; the rest travels with the embeddings, as further features, and is added right
    before the LLM. So it does not matter how often, or in how many pieces, vLLM hands a prompt over.
    """

    served: ClassVar[QwenVL]

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise UnsupportedModel(
                f"pipeline_parallel_size={vllm_config.parallel_config.pipeline_parallel_size}: the positions of pruned "
                "images reach the first stage only; use tensor or data parallelism."
            )
        # one place in memory for good: the LLM's CUDA graphs read it
        tokens, device = vllm_config.scheduler_config.max_num_batched_tokens, vllm_config.device_config.device
        self._offsets = torch.zeros(3, tokens, dtype=torch.int64, device=device)

    def _placed(self, modality: str, item: Any, features: Tensor, at: Tensor) -> Tensor:
        steps = self.served.steps(self.config, modality, item)  # type: ignore[attr-defined]
        offsets = steps.offsets.to(at.device)[at]
        digits = torch.cat([offsets // BASE, offsets % BASE], dim=1)
        return torch.cat([features, digits.to(features.dtype)], dim=1)

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[Tensor, int]:
        """(3, L) positions of a shortened prompt, of an image's tokens that of its first; and what to add later on."""
        positions, at, following = torch.empty(len(input_tokens), dtype=torch.int64), 0, 0
        for feature in sorted(mm_features, key=lambda one: one.mm_position.offset):
            steps = self.served.steps(self.config, feature.modality, feature.data.get_data())  # type: ignore[attr-defined]
            for start, stop in _runs(feature.mm_position):
                positions[at:start] = torch.arange(following, following + start - at)
                following += start - at
                positions[start:stop] = following
                following += steps.extent
                at = stop
        positions[at:] = torch.arange(following, following + len(input_tokens) - at)
        following += len(input_tokens) - at
        return positions.expand(3, -1).contiguous(), following - len(input_tokens)

    def embed_input_ids(
        self, input_ids: Tensor, multimodal_embeddings: Any = None, *, is_multimodal: Tensor | None = None
    ) -> Tensor:
        """vLLM's own; and notes where the images' tokens lie, for the forward that follows."""
        self._offsets.zero_()
        if multimodal_embeddings is not None and len(multimodal_embeddings):
            assert is_multimodal is not None
            digits = torch.cat([one[:, -DIGITS:] for one in multimodal_embeddings]).long()
            offsets = digits[:, :3] * BASE + digits[:, 3:]
            at = is_multimodal.nonzero()[:, 0].to(input_ids.device)
            self._offsets[:, at] = offsets.T
            multimodal_embeddings = [one[:, :-DIGITS] for one in multimodal_embeddings]
        return super().embed_input_ids(input_ids, multimodal_embeddings, is_multimodal=is_multimodal)  # type: ignore[misc]

    def forward(self, input_ids: Any, positions: Tensor, *args: Any, **kwargs: Any) -> Any:
        offsets = self._offsets[:, : positions.shape[-1]]
        return super().forward(input_ids, positions + offsets, *args, **kwargs)  # type: ignore[misc]


def _runs(place: Any) -> list[tuple[int, int]]:
    """Where an item's visual tokens begin and end in the prompt: once, or once for each frame that stands apart."""
    if place.is_embed is None:
        return [(place.offset, place.offset + place.length)]
    marks = torch.nn.functional.pad(place.is_embed.int(), (1, 1)).diff()
    starts, stops = ((marks == step).nonzero()[:, 0] + place.offset for step in (1, -1))
    return list(zip(starts.tolist(), stops.tolist()))
