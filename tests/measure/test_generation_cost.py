"""What one `generate` cost, of the model as it is and pruned."""

import pytest
import torch

from vlprune import Script, attach
from vlprune.measure import measure_generate

LENGTHS = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False)


def test_measure_generate(model, inputs):
    plain = model.generate(**inputs, **LENGTHS)
    run = measure_generate(model, inputs, repeats=2, warmup=1, **LENGTHS)
    assert torch.equal(run.new_ids, plain[:, 20:])
    assert (run.prompt_tokens, run.visual_tokens) == (20, 16)
    with attach(model, Script(keep=4)) as pruner:
        short = measure_generate(model, inputs, pruner=pruner, **LENGTHS)
    assert (short.prompt_tokens, short.visual_tokens) == (8, 4)
    assert short.flops.total < run.flops.total
    assert short.kv_bytes * 23 == run.kv_bytes * 11
    assert short.latency.selection > 0


def test_measure_generate_in_a_batch(model, inputs):
    pair = {name: torch.cat([value, value]) for name, value in inputs.items()}
    one, two = measure_generate(model, inputs, **LENGTHS), measure_generate(model, pair, **LENGTHS)
    assert two.flops.total == 2 * one.flops.total
    assert two.kv_bytes == 2 * one.kv_bytes
    assert two.visual_tokens == 32


def test_an_unknown_decoder_has_no_figure(model, inputs):
    model.config.text_config.model_type = "unheard_of"
    assert measure_generate(model, inputs, **LENGTHS).flops is None


@pytest.mark.parametrize("wrong", [dict(repeats=0), dict(warmup=-1), dict(num_beams=2)])
def test_wrong_input(model, inputs, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        measure_generate(model, inputs, **wrong)
