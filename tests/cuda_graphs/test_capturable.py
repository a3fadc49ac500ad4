"""What is captured never waits for the device: it also runs where tensors have no values, on real-size models."""

import pytest
import torch

from vlprune.cuda_graphs.capture import no_capture
from vlprune.cuda_graphs.decoder_graphs import DecoderGraphs
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.vision_tower import find_towers
from vlprune.measure.architectures import get_architecture

META = torch.device("meta")


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
    known = [tower.config.model_type for tower in find_towers(model)]
    assert bool(known) == (not model.config.model_type.startswith("qwen"))
    for tower in find_towers(model):
        size = tower.config.image_size
        size = size if isinstance(size, int) else size[0]
        with torch.no_grad():
            out = tower(torch.empty(2, 3, size, size, dtype=torch.bfloat16, device=META), output_hidden_states=True)
        assert len(out.hidden_states) == tower.config.num_hidden_layers + 1
