"""Sets of tokens under the envelope."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.evaluation.image_tokens import ImageTokens
from vlprune.evaluation.questions import pocket_questions
from vlprune.studies.envelope import SIZE, envelope, measure_set, token_sets

QUESTION = pocket_questions("test", 1)[0]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), d=st.integers(SIZE, 9), pull=st.floats(-0.5, 3.0))
def test_no_set_is_above_the_envelope(seed, d, pull):
    torch.manual_seed(seed)
    image = ImageTokens(QUESTION, torch.randn(30, d) + pull, (5, 6))
    for sets in token_sets(image).values():
        for tokens in sets:
            one = measure_set(image, tokens)
            assert one.low <= one.mean <= one.high
            assert one.mean >= -1 / (SIZE - 1) - 1e-9
            assert one.determinant <= envelope(one.mean) + 1e-9


def test_equal_cosines_reach_it():
    for rho in (-0.25, -0.1, 0.0, 0.4, 0.9):
        values, vectors = np.linalg.eigh((1 - rho) * np.eye(SIZE) + rho)
        image = ImageTokens(QUESTION, torch.tensor(vectors * np.sqrt(values.clip(0))), (1, SIZE))
        one = measure_set(image, range(SIZE))
        assert one.determinant == pytest.approx(envelope(rho), abs=1e-9)
        assert one.high - one.low < 1e-9


def test_the_greedy_is_wider_than_chance():
    torch.manual_seed(0)
    image = ImageTokens(QUESTION, torch.randn(36, 8) + 0.8, (6, 6))
    sets = token_sets(image)
    wide = measure_set(image, sets["greedy"][0]).determinant
    assert wide > max(measure_set(image, tokens).determinant for tokens in sets["random"])
    assert token_sets(ImageTokens(QUESTION, torch.randn(SIZE - 1, 8), (1, SIZE - 1))) == {}
