"""The modules of a decoder that are replaced by fused ones while its graphs are captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from torch import nn

from vlprune.cuda_graphs.fused_attention import FusedAttention, can_fuse_attention
from vlprune.cuda_graphs.fused_linear import FusedLinear, LinearSlice, can_fuse_linear
from vlprune.cuda_graphs.fused_norm_mlp import FusedMLP, FusedNorm, can_fuse_mlp, can_fuse_norm

#: Children of a module that its forward calls on the same input, in the order of the calls.
LINEAR_GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Replacement(NamedTuple):
    """The child `name` of `parent`, and the module that takes its place."""

    parent: nn.Module
    name: str
    module: nn.Module


class FusedModules:
    """Fused versions of a decoder's modules, which take their places inside `with fused_modules.installed(...)`.

    Queries, keys and values become one matrix product, gate and up another, and where there are kernels for them the
    norms, MLPs and attentions become one kernel each. Layers that are more than a plain `nn.Linear` are left as
    they are. Weights are moved (see `FusedLinear`).
    """

    def __init__(self, decoder: nn.Module) -> None:
        self._linears: list[Replacement] = []
        self._attentions: list[Replacement] = []
        self._norms_and_mlps: list[Replacement] = []
        for path, module in list(decoder.named_modules()):
            parent_path, _, name = path.rpartition(".")
            parent = decoder.get_submodule(parent_path)
            if can_fuse_norm(module):
                self._norms_and_mlps.append(Replacement(parent, name, FusedNorm(module)))
            for names in LINEAR_GROUPS:
                layers = [getattr(module, child, None) for child in names]
                if can_fuse_linear(layers):
                    fused = FusedLinear(layers)
                    self._linears += [
                        Replacement(module, child, LinearSlice(fused, i)) for i, child in enumerate(names)
                    ]
                    if can_fuse_attention(module, fused.weight):
                        self._attentions.append(Replacement(parent, name, FusedAttention(module, fused)))
                    if can_fuse_mlp(module, fused.weight):
                        self._norms_and_mlps.append(Replacement(parent, name, FusedMLP(module, fused)))

    @contextmanager
    def installed(self, short_prompt: bool, compiled: bool) -> Iterator[None]:
        """Inside, the fused modules are the decoder's own.

        `short_prompt`: at most `vlprune.cuda_graphs.fused_attention.MAX_PROMPT` tokens are read, without padding, so
        that attention is fused too. `compiled`: a compiler fuses norms and MLPs, so that ours are not needed.
        """
        with ExitStack() as stack:
            for parent, name, module in (
                *self._linears,
                *(self._attentions if short_prompt else ()),
                *(() if compiled else self._norms_and_mlps),
            ):
                stack.callback(parent._modules.__setitem__, name, parent._modules[name])
                parent._modules[name] = module
            yield
