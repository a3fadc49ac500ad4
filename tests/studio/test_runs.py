"""The curves of a finished run."""

import json

import pytest

from vlprune.errors import UserError
from vlprune.studio.runs import read_accuracy


def test_points_of_a_real_run(evaluation):
    from vlprune import Random, Script
    from vlprune.evaluation.accuracy import evaluate_methods

    result = evaluate_methods(evaluation, {"script": {"16": Script(keep=16)}, "random": {"16": Random(keep=16)}})
    folder = evaluation.run_folder.path
    result.save(folder)
    points = {point.method: point for point in read_accuracy(folder / "result.json")}
    assert sorted(points) == ["all tokens", "random", "script"]
    assert (points["script"].tokens, points["all tokens"].tokens) == (16, 576)
    assert points["script"].right == pytest.approx(100 * result.data["scores"]["script@16"]["accuracy"])
    assert points["script"].low <= points["script"].right <= points["script"].high


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"data": {"scores": {}}}', '{"data": {"scores": {"a": 3}}}', "[" * 9999]
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"^'other.json' is not the result.json of a run of `vlprune eval`.$"):
        read_accuracy(path)


def test_nothing_of_the_file_but_numbers_is_used(tmp_path):
    path = tmp_path / "result.json"
    score = {"entering": 1, "accuracy": "<b>", "interval": [0, 1]}
    path.write_text(json.dumps({"data": {"scores": {"script@1": score}}}))
    with pytest.raises(UserError, match=r"is not the result\.json"):
        read_accuracy(path)
