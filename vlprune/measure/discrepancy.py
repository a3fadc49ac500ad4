"""How far a pruned model's output is from the whole model's: the quantity that Eq. 1 of the paper minimises."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor


def next_token_kl(full: Tensor, pruned: Tensor) -> Tensor:
    """(B,) the divergence of the pruned model's next token from the whole model's, in nats; 0 where both agree.

    With p the distribution of the next token given all visual tokens, and q given those that were kept:
    KL(p ‖ q) = Σ_t p(t) · (log p(t) − log q(t)), over the vocabulary, in float32.

    Args:
        full: (B, V) logits with all tokens, any floating dtype.
        pruned: (B, V) logits with the kept tokens.

    >>> logits = torch.tensor([[2.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    >>> next_token_kl(logits, logits).tolist()
    [0.0, 0.0]
    >>> next_token_kl(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))  # log(1 + e) − log 2 − ½
    tensor([0.1201])
    """
    if full.ndim != 2 or full.shape != pruned.shape:
        raise ValueError(f"full {tuple(full.shape)}, pruned {tuple(pruned.shape)}: logits of one shape, (B, V).")
    p, q = full.float().log_softmax(1), pruned.to(full.device).float().log_softmax(1)
    terms = p.exp() * (p - q)
    terms = terms.masked_fill(p == float("-inf"), 0.0)  # a token that the whole model never says
    return terms.sum(1).clamp(min=0.0)  # below 0 by rounding only


class FirstLogits:
    """Records the logits (B, V) of the first answer token in the `generate` that runs inside; float32, on its device.

    The prompts end at their last column, as they do for `generate`: padding is on the left.

    >>> from vlprune import Random, attach, pocket
    >>> model, processor, _ = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> with FirstLogits(model) as full:
    ...     _ = model.generate(**inputs, max_new_tokens=1, do_sample=False)
    >>> with attach(model, Random(keep=576)), FirstLogits(model) as pruned:  # all tokens of this model
    ...     _ = model.generate(**inputs, max_new_tokens=1, do_sample=False)
    >>> next_token_kl(full.logits, pruned.logits).tolist()
    [0.0]
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """What was recorded; `RuntimeError` if nothing was generated."""
        if self._logits is None:
            raise RuntimeError("no logits yet: call the model's generate inside the `with` block.")
        return self._logits

    def __enter__(self) -> FirstLogits:
        self._handle = self._model.register_forward_hook(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()

    def _record(self, module: Any, args: Any, output: Any) -> None:
        if self._logits is None:
            self._logits = output.logits[:, -1].detach().to(torch.float32, copy=True)
