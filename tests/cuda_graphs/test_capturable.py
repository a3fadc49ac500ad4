"""What is captured never waits for the device: it also runs where tensors have no values, on real-size models."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlprune.cuda_graphs.capture import no_capture
from vlprune.cuda_graphs.decoder_graphs import DecoderGraphs
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.vision_tower import PATCH_TOWERS, find_towers, told_sizes
from vlprune.measure.architectures import get_architecture

META = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Raises where an operation moves values between devices, which would wait for the host's memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        devices = {leaf.device for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)}
        assert len(devices) <= 1, f"{func} on {devices}"
        return out


@pytest.fixture(
    scope="module", params=["llava-1.5-7b", "llava-next-7b", "llava-video-7b", "internvl3-8b", "qwen2.5-vl-7b"]
)
def model(request):
    return get_architecture(request.param).build("meta")


@pytest.mark.parametrize("padded", [False, True])
def test_the_decoder(model, padded):
    decoder = model.get_decoder()
    graphs = DecoderGraphs(decoder, decoder.forward, 2, 512, META, no_capture, FusedModules(decoder), None)
    width = decoder.config.hidden_size
    grid = (4,) if model.config.model_type.startswith("qwen") else ()
    embeds = torch.empty(2, 130, width, dtype=torch.bfloat16, device=META)
    positions = torch.empty(*grid, 2, 130, dtype=torch.long, device=META)
    with torch.no_grad():
        hidden = graphs._graph(embeds, positions, 160, True, padded, {}).replay()
        assert hidden.shape == (2, 160, width)
        graphs.cache.set_length(130)
        hidden = graphs._graph(embeds[:, :1], positions[..., :1], 1, False, padded, {}).replay()
    assert hidden.shape == (2, 1, width)
    heads = decoder.config.num_key_value_heads
    assert {layer.keys.shape[:3] for layer in graphs.cache.layers} == {(2, heads, 512)}


def test_the_tower(model):
    (tower,) = find_towers(model)
    with torch.no_grad():
        if tower.config.model_type in PATCH_TOWERS:
            told, attention = told_sizes(tower, torch.tensor([[1, 72, 72], [2, 4, 6]]))
            told |= {name: told[name].to(META) for name in ("position_ids", "window_index")}
            patches = torch.empty(72 * 72 + 48, 3 * 2 * 14 * 14, dtype=torch.bfloat16, device=META)
            with OneDevice(), attention:
                out = tower(patches, **told)
            assert out.pooler_output.shape == (36 * 36 + 12, tower.config.out_hidden_size)
            return
        size = tower.config.image_size
        size = size if isinstance(size, int) else size[0]
        pixels = torch.empty(2, 3, size, size, dtype=torch.bfloat16, device=META)
        with OneDevice():
            out = tower(pixels, output_hidden_states=True)
        assert len(out.hidden_states) == tower.config.num_hidden_layers + 1
