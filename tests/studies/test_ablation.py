"""Script's parts, switched on and off."""

import pytest
import torch

from vlprune import CDPruner, Script
from vlprune.studies.ablation import Parts
from vlprune.types import Query, TokenView


def view_and_query():
    torch.manual_seed(0)
    tokens = torch.randn(2, 36, 8)
    return TokenView(tokens, (6, 6)), Query(tokens, torch.randn(2, 1, 8), 1, "llm", ("?", "?"))


def test_all_parts_together_are_script():
    view, query = view_and_query()
    for keep in (3, 9, 20):
        script = Script(keep=keep)
        assert torch.equal(Parts(keep).select(view, query).kept, script.select(view, query).kept)
        default = Parts(keep, gsp=False).select(view, query)
        assert torch.equal(default.kept, CDPruner(keep=keep).select(view, query).kept)


def test_each_part_changes_what_is_kept():
    view, query = view_and_query()
    combinations = [(g, q, d) for g in (False, True) for q in (False, True) for d in (False, True) if g or q or d]
    kept = [Parts(9, gsp=g, qcrs=q, dpp=d).select(view, query).kept for g, q, d in combinations]
    assert all(one.shape == (2, 9) for one in kept)
    assert len({tuple(one.flatten().tolist()) for one in kept}) == len(combinations)
    with pytest.raises(ValueError, match="all off"):
        Parts(9, gsp=False, qcrs=False, dpp=False).select(view, query)
