"""What is drawn is what was found."""

import pytest

from vlprune.evaluation.plots import plot_curves


def test_intervals_reach_where_they_say():
    figure = plot_curves({"a": [(16, 99.0, 98.0, 99.5), (64, 90.0, 80.0, 95.0)]}, flat={}, x="tokens", y="right, %")
    (axes,) = figure.axes
    (bars,) = axes.containers[0].lines[2]
    drawn = [sorted(100 - end for end in segment[:, 1]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx([98.0, 99.5]), pytest.approx([80.0, 95.0])]
