"""Every family answers with graphs as it does without: positions on a grid, deep features, tiles and videos."""

import copy
import warnings

import pytest
import torch

from tests.support.families import CASES, made
from vlprune import Random, attach

GREEDY = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6}
PAIRS = [(case, layout) for case in CASES for layout in case.layouts if layout in ("ragged", "video")]
REASONS = {
    "gemma3": "sliding_attention",
    "paligemma": "an attention mask of its own",
    "qwen3_vl": "deepstack_visual_embeds",  # the prefill; the steps are graphs
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:vlprune. .* has no family of its own"),
    pytest.mark.filterwarnings("ignore:.pixel_values_images. is deprecated:FutureWarning"),
]


@pytest.mark.parametrize(("case", "layout"), PAIRS, ids=[f"{case.name}-{layout}" for case, layout in PAIRS])
@pytest.mark.parametrize("pruned", [False, True])
def test_same_answers(case, layout, pruned, graphed, device):
    model = copy.deepcopy(made(case)).to(device)
    batch = {name: value.to(device) for name, value in case.batch(case.samples(layout)).items()}

    def answers():
        if not pruned:
            return [model.generate(**batch, **GREEDY)]
        found = []
        for positions in case.positions:
            with attach(model, Random(keep=4), positions=positions):
                found += [model.generate(**batch, **GREEDY) for _ in range(2)]
        return found

    without = answers()
    with graphed(model) as graphs, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = answers()
        reasons = [str(one.message) for one in said if "without CUDA graphs" in str(one.message)]
        held = graphs.graph_count
    assert all(map(torch.equal, found, without))
    assert len(reasons) == (case.name in REASONS)
    assert all(REASONS[case.name] in reason for reason in reasons)
    graphs = {"gemma3": 0, "paligemma": 0, "qwen3_vl": 1}.get(case.name, 2)  # a prefill and a step
    assert held == graphs if not pruned else held <= 2 * graphs
