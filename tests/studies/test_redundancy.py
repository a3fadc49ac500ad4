"""Similarity by distance and local entropy, on tensors."""

import numpy as np
import pytest
import torch

from vlprune.evaluation.image_tokens import ImageTokens, neighbour_similarity
from vlprune.evaluation.questions import pocket_questions
from vlprune.studies.redundancy import image_entropy, neighbourhood_entropy, similarity_by_distance


def image_tokens(features, grid):
    return ImageTokens(pocket_questions("test", 1)[0], features, grid)


def test_similarity_by_distance_is_what_it_says():
    torch.manual_seed(1)
    one = image_tokens(torch.randn(6, 5), (2, 3))
    unit = torch.nn.functional.normalize(one.features, dim=1)
    pairs = {}
    for a in range(6):
        for b in range(a):
            far = abs(a // 3 - b // 3) + abs(a % 3 - b % 3)
            pairs.setdefault(far, []).append(float(unit[a] @ unit[b]))
    found = similarity_by_distance([one])
    assert {d: count for d, (_, count) in found.items()} == {d: len(values) for d, values in pairs.items()}
    for d, values in pairs.items():
        assert found[d][0] == pytest.approx(np.mean(values), abs=1e-6)


def test_entropy_is_low_where_neighbours_agree():
    """Left half: one and the same token; right half: noise."""
    torch.manual_seed(2)
    features = torch.randn(8, 8, 6)
    features[:, :4] = features[0, 0]
    one = image_tokens(features.view(64, 6), (8, 8))
    for entropy in (image_entropy(one), neighbourhood_entropy(one)):
        grid = entropy.view(8, 8)
        assert grid[:, :3].max() < 1e-4  # one bin only
        assert grid[1:-1, 6].min() > 1
        assert grid.max() <= np.log(9) + 1e-4
    similar = neighbour_similarity(one).view(8, 8)
    assert similar[:, :3].min() > 0.999
    assert similar[:, 6].max() < 0.9


def test_constant_images_have_no_entropy():
    one = image_tokens(torch.ones(16, 3), (4, 4))
    assert image_entropy(one).max() < 1e-4
    assert neighbourhood_entropy(one).max() < 1e-4
