"""`generate` with graphs gives what it gives without, and says so where it runs without."""

import copy
import functools
import warnings
from contextlib import nullcontext

import pytest
import torch
from transformers import DynamicCache

from tests.support import tiny_llava as tiny
from vlprune import Random, Script, attach, cuda_graphs, get_method
from vlprune.cuda_graphs import capture, decoder_graphs
from vlprune.cuda_graphs.graphed_model import GraphedModel

LENGTHS = {"max_new_tokens": 9, "min_new_tokens": 9}
GREEDY = {**LENGTHS, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
CLOSE = {"atol": 1e-3, "rtol": 1e-3}


@pytest.fixture(autouse=True)
def _no_warning_unasked():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="vlprune: without CUDA graphs")
        yield


def pruning(model, processor, method):
    return attach(model, method, processor=processor) if method is not None else nullcontext()


def alike(one, other):
    assert torch.equal(one.sequences, other.sequences)
    for a, b in zip(one.logits, other.logits):
        torch.testing.assert_close(a, b, **CLOSE)
    assert type(other.past_key_values) is DynamicCache
    for a, b in zip(one.past_key_values.layers, other.past_key_values.layers):
        assert a.keys.shape == b.keys.shape


@pytest.mark.parametrize("method", [None, Script(keep=5), Random(keep=1.0)], ids=["plain", "script", "keep all"])
@pytest.mark.parametrize("prompt", ["single", "ragged"])
def test_same_answers(model, processor, graphed, request, prompt, method):
    inputs = request.getfixturevalue(prompt)
    with pruning(model, processor, method):
        without = model.generate(**inputs, **GREEDY)
    with graphed(model) as graphs, pruning(model, processor, method):
        for _ in range(3):
            alike(without, model.generate(**inputs, **GREEDY))
        assert graphs.graph_count == 2  # a prefill and a step


@pytest.mark.parametrize("options", [{}, {"num_return_sequences": 3}, {"top_k": 5, "temperature": 2.0}])
def test_samples(model, processor, graphed, ragged, options):
    def sampled():
        torch.manual_seed(3)
        return model.generate(**ragged, **LENGTHS, do_sample=True, **options)

    with attach(model, Random(keep=4), processor=processor):
        without = sampled()
    with graphed(model), attach(model, Random(keep=4), processor=processor):
        assert torch.equal(sampled(), without)


def test_prompts_of_one_bucket_share_a_graph(model, processor, graphed, device):
    texts = ["what ?", "what is it ?", "what is the cat ?", "what " * 40]
    prompts = [tiny.inputs(processor, [text], [1], device) for text in texts]
    with attach(model, Script(keep=6), processor=processor):
        without = [model.generate(**prompt, **GREEDY) for prompt in prompts]
    counts = []
    with graphed(model) as graphs, attach(model, Script(keep=6), processor=processor):
        for prompt, expected in zip(prompts, without):
            alike(expected, model.generate(**prompt, **GREEDY))
            counts.append(graphs.graph_count)
    assert counts == [2, 2, 2, 3]


def test_buckets():
    lengths = [*range(1, 2000), 2992, 10881]
    for length in lengths:
        assert length <= decoder_graphs.bucket(length) <= decoder_graphs.capacity(length)
        assert decoder_graphs.bucket(decoder_graphs.bucket(length)) == decoder_graphs.bucket(length)


def test_other_batches_and_lengths(model, processor, graphed, single, ragged):
    """Graphs of other sizes do not disturb each other."""
    calls = [(single, 3), (ragged, 3), (single, 400), (single, 3)]
    settings = [dict(GREEDY, max_new_tokens=new, min_new_tokens=3) for _, new in calls]
    without = [model.generate(**inputs, **options) for (inputs, _), options in zip(calls, settings)]
    with graphed(model):
        for (inputs, _), options, expected in zip(calls, settings, without):
            alike(expected, model.generate(**inputs, **options))


def test_a_kept_cache_goes_on(model, processor, graphed, single, device):
    def turns():
        first = model.generate(**single, **GREEDY)
        held = first.past_key_values
        model.generate(**tiny.inputs(processor, ["how many dogs ?"], [1], device, seed=7), **GREEDY)
        longer = torch.cat([first.sequences, first.sequences[:, -3:]], dim=1)
        mask = torch.ones_like(longer)
        more = {"pixel_values": single["pixel_values"], "past_key_values": held}
        return model.generate(input_ids=longer, attention_mask=mask, **more, **LENGTHS, do_sample=False)

    with attach(model, Script(keep=5), processor=processor):
        without = turns()
    warned = pytest.warns(UserWarning, match="past_key_values is passed")
    with graphed(model), attach(model, Script(keep=5), processor=processor), warned:
        result = turns()
    assert torch.equal(result, without)


def hook_into(model):
    model.model.language_model.layers[1].register_forward_pre_hook(lambda *args: None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"use_cache": False}, "use_cache"),
        ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "hidden states"),
        ({"prefill_chunk_size": 4}, "chunks"),
        (hook_into, "hooks into"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_covered_runs_as_before(model, processor, graphed, single, options, reason):
    if callable(options):
        options(model)
        options = {}

    def answer():
        with attach(model, Script(keep=5), processor=processor):
            out = model.generate(**single, **LENGTHS, do_sample=False, **options)
        return out if isinstance(out, torch.Tensor) else out.sequences

    without = answer()
    with graphed(model) as graphs:
        with pytest.warns(UserWarning, match=f"vlprune: without CUDA graphs: .*{reason}"):
            assert torch.equal(answer(), without)
        assert torch.equal(answer(), without)  # and warns once: a second warning would be an error
        assert graphs.graph_count == 0


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop"])
def test_methods_inside_the_llm_run_as_before(model, processor, graphed, ragged, name):
    method = get_method(name, keep=5, **({"layer": 1} if name == "fastv" else {"layers": (1,)}))
    with attach(model, method, processor=processor):
        without = model.generate(**ragged, **GREEDY)
    with graphed(model) as graphs, attach(model, method, processor=processor):
        with pytest.warns(UserWarning, match="hooks into the decoder's layers"):
            result = model.generate(**ragged, **GREEDY)
        assert graphs.graph_count == 0
    assert torch.equal(result.sequences, without.sequences)


def test_attention_that_is_not_covered(graphed, single, device):
    model = tiny.llava(attention="eager").to(device)
    without = model.generate(**single, **GREEDY)
    with graphed(model), pytest.warns(UserWarning, match="the attention is 'eager'"):
        assert torch.equal(model.generate(**single, **GREEDY).sequences, without.sequences)


def test_autocast_is_not_covered(model, graphed, single, device):
    with graphed(model) as graphs, torch.autocast(device.type, torch.bfloat16):
        with pytest.warns(UserWarning, match="autocast is on"):
            model.generate(**single, **GREEDY)
        assert graphs.graph_count == 0


def test_on_a_cpu(weights, single):
    if weights.device.type == "cuda":
        pytest.skip("there is a GPU")
    with attach(weights, Random(keep=4), cuda_graphs=True), pytest.warns(UserWarning, match="on the device 'cpu'"):
        weights.generate(**single, **GREEDY)


def test_direct_calls_are_left_alone(model, processor, graphed, single):
    labels = single["input_ids"]
    without = model(**single, labels=labels)
    with graphed(model) as graphs:
        model.generate(**single, **GREEDY)
        held = graphs.graph_count
        result = model(**single, labels=labels)
        result.loss.backward()
        assert graphs.graph_count == held
    torch.testing.assert_close(result.loss, without.loss)


@pytest.mark.parametrize("before", [0, 1, 2], ids=["tower", "prefill", "step"])
def test_a_failed_capture(model, single, before):
    made = []

    def refuses(function):
        if len(made) == before:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        made.append(function)
        return function

    without = model.generate(**single, **GREEDY)
    with GraphedModel(model, capture=refuses):
        with pytest.warns(UserWarning, match=r"could not be captured \(operation not permitted .*capturing\)"):
            alike(without, model.generate(**single, **GREEDY))
        alike(without, model.generate(**single, **GREEDY))
    assert len(made) == before


def test_a_nan_does_not_outlive_its_call(model, graphed, single):
    without = model.generate(**single, **GREEDY)
    with graphed(model) as graphs:
        model.generate(**single, **GREEDY)
        for held in graphs._decoder_graphs.values():
            for layer in held.cache.layers:
                layer.keys.fill_(float("nan"))
                layer.values.fill_(float("nan"))
        alike(without, model.generate(**single, **GREEDY))


def test_weights_that_change(model, graphed, single):
    with graphed(model) as graphs:
        model.generate(**single, **GREEDY)
        with torch.no_grad():  # in place: the graphs see it
            model.model.language_model.layers[0].mlp.up_proj.weight.mul_(-1)
        inside = model.generate(**single, **GREEDY)
        layer = model.model.language_model.layers[1].mlp
        layer.down_proj.weight = torch.nn.Parameter(-layer.down_proj.weight)  # elsewhere: they are made anew
        moved = model.generate(**single, **GREEDY)
        assert graphs.graph_count == 2
    alike(model.generate(**single, **GREEDY), moved)
    layer.down_proj.weight = torch.nn.Parameter(-layer.down_proj.weight)
    alike(model.generate(**single, **GREEDY), inside)


def test_under_inference_mode(model, graphed, single):
    without = model.generate(**single, **GREEDY)
    with graphed(model):
        with torch.inference_mode():
            model.generate(**single, **GREEDY)
        alike(without, model.generate(**single, **GREEDY))


def test_the_tower(model, processor, graphed, device):
    """Replayed for other pixels of the same shape; what it gave before stays as it was."""
    tower = model.model.vision_tower
    one, two = (tiny.inputs(processor, ["what ?"], [1], device, seed=seed)["pixel_values"] for seed in (1, 2))
    with torch.no_grad():
        plain = [tower(pixels, output_hidden_states=True).hidden_states[-2] for pixels in (one, two)]
        with graphed(model):
            first = tower(one, output_hidden_states=True).hidden_states[-2]
            second = tower(two, output_hidden_states=True).hidden_states[-2]
    torch.testing.assert_close(torch.stack([first, second]), torch.stack(plain), **CLOSE)
    assert "forward" not in tower.__dict__


def test_the_model_is_given_back(model, processor, graphed, single):
    parts = (model, model.get_decoder(), model.model.vision_tower)
    model.generate(**single, **GREEDY)  # at their first use transformers notes on its modules that it has hooked them
    before = [dict(part.__dict__) for part in parts]
    graphs = graphed(model)
    with pytest.raises(RuntimeError, match="already has graphs"):
        graphed(model)
    with attach(model, Random(keep=4)):
        model.generate(**single, **GREEDY)
    graphs.close()
    graphs.close()
    assert [part.__dict__.keys() for part in parts] == [held.keys() for held in before]
    assert all("forward" not in part.__dict__ and "generate" not in part.__dict__ for part in parts)
    with attach(model, Random(keep=4)), pytest.raises(RuntimeError, match="cuda_graphs=True"):
        graphed(model)


def test_a_copy_of_the_model(model, graphed, single):
    with graphed(model):
        expected = model.generate(**single, **GREEDY)
        alike(expected, copy.deepcopy(model).generate(**single, **GREEDY))


@pytest.mark.parametrize("graphs", [True, "compile"])
def test_attach(model, processor, single, monkeypatch, device, graphs):
    if device.type != "cuda":  # the same, but for the capture and the compiler
        make = functools.partial(GraphedModel, capture=capture.no_capture)
        monkeypatch.setattr("vlprune.cuda_graphs.graphed_model.GraphedModel", make)
        eager = functools.partialmethod(capture.CompiledLayers.__init__, backend="eager")
        monkeypatch.setattr(capture.CompiledLayers, "__init__", eager)
    with attach(model, Script(keep=5), processor=processor):
        without = model.generate(**single, **GREEDY)
    with attach(model, Script(keep=5), processor=processor, cuda_graphs=graphs) as pruner:
        alike(without, model.generate(**single, **GREEDY))
        assert pruner.cuda_graphs.graph_count == 2
        assert pruner.last.after == 5
    assert "forward" not in model.get_decoder().__dict__


def test_wrong_input(model):
    with pytest.raises(ValueError, match="cuda_graphs='fast': choose from"):
        attach(model, Random(keep=4), cuda_graphs="fast")
    assert "generate" not in model.__dict__
    with pytest.raises(TypeError, match="a Linear: graphs need"):
        cuda_graphs.GraphedModel(torch.nn.Linear(1, 1))
