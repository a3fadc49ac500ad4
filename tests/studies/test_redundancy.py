"""Similarity by distance, pairs and local entropy, on tensors; streamed, and on tiles."""

import gc
import weakref

import numpy as np
import pytest
import torch

from tests.support.family_checkpoints import CASES, processor
from vlprune.evaluation import image_tokens as room
from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import ImageTokens, cosine_matrix, neighbour_similarity, stream_image_tokens
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.questions import ImageQuestion, pocket_questions
from vlprune.evaluation.run_folder import RunFolder
from vlprune.evaluation.stats import pearson, spearman
from vlprune.studies.redundancy import FAR, NEAR, Redundancy, image_entropy, neighbourhood_entropy
from vlprune.studies.running_statistics import RunningCorrelation, RunningHistogram


def image_tokens(features, grid):
    return ImageTokens(pocket_questions("test", 1)[0], features, grid)


def test_similarity_by_distance_is_what_it_says():
    torch.manual_seed(1)
    images = [image_tokens(torch.randn(6, 5), (2, 3)), image_tokens(torch.randn(4, 5), (1, 4))]
    pairs = {}
    for one in images:
        unit = torch.nn.functional.normalize(one.features, dim=1)
        columns = one.grid[1]
        for a in range(len(unit)):
            for b in range(a):
                far = abs(a // columns - b // columns) + abs(a % columns - b % columns)
                pairs.setdefault(far, []).append(float(unit[a] @ unit[b]))
    running = Redundancy()
    for one in images:
        running.add(one)
    found = running.by_distance
    assert {d: count for d, (_, count) in found.items()} == {d: len(values) / 2 for d, values in pairs.items()}
    for d, values in pairs.items():
        assert found[d][0] == pytest.approx(np.mean(values), abs=1e-6)


def test_pairs_are_counted_as_lists_of_them_would_be():
    torch.manual_seed(3)
    one = image_tokens(torch.randn(30, 4), (5, 6))
    running = Redundancy()
    running.add(one)
    cosine = cosine_matrix(one.features)
    near = [
        float(cosine[a, b]) for a in range(30) for b in range(a) if max(abs(a // 6 - b // 6), abs(a % 6 - b % 6)) == 1
    ]
    seen = running.pairs[NEAR]
    assert (seen.total, running.pairs[FAR].total) == (len(near), len(near))
    assert seen.mean == pytest.approx(np.mean(near))
    assert seen.share_above(0.5) == pytest.approx(np.mean(np.array(near) > 0.5))
    assert seen.lowest == pytest.approx(min(near))


def test_correlations_are_those_of_all_tokens_together():
    drawn = np.random.default_rng(0)
    x = np.tanh(drawn.normal(size=5000))
    y = np.abs(drawn.normal(size=5000) - x).clip(max=2.4)
    running = RunningCorrelation((-1, 1), (0, 2.5))
    for part in range(0, 5000, 500):
        running.add(x[part : part + 500], y[part : part + 500])
    assert running.pearson == pytest.approx(pearson(x, y), abs=1e-9)
    assert running.spearman == pytest.approx(spearman(x, y), abs=1e-3)
    assert running.mean_y == pytest.approx(y.mean())
    assert running.coarse(80, 40)[0].sum() == 5000
    heights, edges = RunningHistogram(-1, 1).coarse(80)
    assert len(heights) == 80 == len(edges) - 1


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
    similar = neighbour_similarity(cosine_matrix(one.features), one.grid).view(8, 8)
    assert similar[:, :3].min() > 0.999
    assert similar[:, 6].max() < 0.9


def test_constant_images_have_no_entropy():
    one = image_tokens(torch.ones(16, 3), (4, 4))
    assert image_entropy(one).max() < 1e-4
    assert neighbourhood_entropy(one).max() < 1e-4
    running = Redundancy()
    running.add(one)
    running.add(image_tokens(torch.ones(1, 3), (1, 1)))  # has no neighbours
    assert running.grids == 1
    assert [one.pearson for one in running.entropies.values()] == [0, 0]


def size_of(found):
    """The bytes of all arrays that running sums hold."""
    arrays = [found.sums, found.counts]
    arrays += [values.counts for values in [*found.pairs.values(), *found.entropies.values()]]
    return sum(array.nbytes for array in arrays)


def test_what_is_held_does_not_grow_with_the_images():
    found = Redundancy()
    sizes = set()
    for seed in range(30):
        torch.manual_seed(seed)
        found.add(image_tokens(torch.randn(36, 4), (6, 6)))
        sizes.add(size_of(found))
    assert len(sizes) == 1
    assert not [value for value in vars(found).values() if isinstance(value, list)]


def test_streaming_holds_one_batch_at_a_time(evaluation, monkeypatch):
    """However many images come, no more of their tokens live at once than one batch has."""
    alive = weakref.WeakSet()
    record = room._ViewRecorder.select

    def count(self, view, query):
        alive.add(view.features)
        return record(self, view, query)

    monkeypatch.setattr(room._ViewRecorder, "select", count)
    questions = pocket_questions("test", 4)
    images = len({question.image_name for question in questions})
    evaluation.batch, most, seen = 1, 0, 0
    for _ in stream_image_tokens(evaluation, questions):
        gc.collect()
        seen += 1
        most = max(most, len(alive))
    assert seen == images > 3
    assert most <= 2  # the one in hand, and the loop's last


@pytest.fixture
def tiled(tmp_path, photo):
    loaded = LoadedModel("tiny", CASES["llava_next"].model(), processor("llava_next"), None)
    question = ImageQuestion(0, "photo", "all", "what is it ?", (), path=photo)
    return Evaluation(loaded, [question], RunFolder(tmp_path / "run", "test", {}))


def test_each_tile_is_a_grid_of_its_own(tiled):
    (whole,) = stream_image_tokens(tiled)
    parts = list(stream_image_tokens(tiled, tiles="apart"))
    assert len(parts) > 2
    assert all(len(part.features) == part.grid[0] * part.grid[1] for part in parts)
    assert sum(len(part.features) for part in parts) == len(whole.features)
    rows = {tuple(row.tolist()) for row in whole.features}
    assert all(tuple(row.tolist()) in rows for part in parts for row in part.features)
    found = Redundancy()
    for part in parts:
        found.add(part)
    assert (found.grids, len(found.names)) == (len(parts), 1)
    with pytest.raises(Exception, match="cut into tiles"):
        list(stream_image_tokens(tiled, tiles="refused"))
