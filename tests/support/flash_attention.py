"""transformers' own flash attention path, without the package `flash_attn`.

On a GPU its two functions are the FlashAttention-2 kernels that torch is built with, in float16; elsewhere the same in
plain torch. All else (masks, unpadding, packed sequences) is what transformers does with the package.
"""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import modeling_flash_attention_utils as utils

NAME = "flash_attention_2"


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """(B, queries, heads, d) from as many queries, and keys and values of fewer heads; causal at the bottom right."""
    if q.is_cuda:
        return _kernel(q, k, v, None, None, q.shape[1], k.shape[1], softmax_scale, causal)
    return torch.stack([_plain(*parts, softmax_scale, causal) for parts in zip(q, k, v)])


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    """The same for sequences one behind the other, (tokens, heads, d), that begin and end at `cu_seqlens`."""
    for ends, tokens, longest in ((cu_seqlens_q, q, max_seqlen_q), (cu_seqlens_k, k, max_seqlen_k)):
        assert ends.dtype == torch.int32
        assert (ends[0], ends[-1], ends.diff().max()) == (0, len(tokens), longest)
    if q.is_cuda:
        return _kernel(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), softmax_scale, causal)
    parts = [
        torch.tensor_split(x, ends[1:-1].long())
        for x, ends in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))
    ]
    return torch.cat([_plain(*part, softmax_scale, causal) for part in zip(*parts)])


def _kernel(q, k, v, ends_q, ends_k, longest_q, longest_k, scale, causal):
    size = q.shape[-1]
    half = [F.pad(x.half(), (0, -size % 8)).contiguous() for x in (q, k, v)]
    run = torch.ops.aten._flash_attention_forward
    scale = size**-0.5 if scale is None else scale
    out = run(*half, ends_q, ends_k, longest_q, longest_k, 0.0, causal, False, scale=scale)[0]
    return out[..., :size].to(q.dtype)


def _plain(q, k, v, scale, causal):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        logits = logits.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1).nan_to_num(0), v)


@contextmanager
def under_flash(model, monkeypatch):
    """Inside, the model's LLM attends by flash attention; the value counts the calls of the two functions."""
    calls = {"dense": 0, "varlen": 0}

    def dense(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
        calls["dense"] += 1
        return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal)

    def varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
    ):
        calls["varlen"] += 1
        ends = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        return flash_attn_varlen_func(q, k, v, *ends, dropout_p, softmax_scale, causal)

    text = model.config.get_text_config()
    before = text._attn_implementation
    with monkeypatch.context() as patch:
        patch.setattr(utils, "_loaded_implementation", NAME)
        patch.setattr(utils, "_flash_fn", dense)
        patch.setattr(utils, "_flash_varlen_fn", varlen)
        patch.setattr(utils, "_pad_fn", utils._pad_input)
        patch.setattr(utils, "_unpad_fn", utils._unpad_input)
        patch.setattr(utils, "_process_flash_kwargs_fn", utils._lazy_define_process_function(varlen))
        text._attn_implementation = NAME
        try:
            yield calls
        finally:
            text._attn_implementation = before
