"""What is drawn is what was found, and can be read."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from vlprune.evaluation.accuracy import evaluate_methods
from vlprune.evaluation.plots import plot_curves, plot_panels, plot_rows
from vlprune.methods import get_method
from vlprune.studies import get_study

#: Shares of right answers of 20 methods at two budgets. At the larger one the best are others than at the smaller.
SHARES = {f"method_{i:02}": (0.5, 0.9) for i in range(14)} | {"a": (0.9, 0.6), "b": (0.8, 0.6), "c": (0.7, 0.6)}
SHARES |= {"script": (0.6, 0.9), "random": (0.3, 0.8), "oracle": (0.4, 1.0)}


def flat_curves(count):
    """Curves that all end at one place."""
    return {f"curve {i}": [(16, 90.0 + i / 10, 89.0, 99.0), (64, 99.0, 98.0, 99.5)] for i in range(count)}


def text_box(figure, name):
    """The box of a label without the leader to its line."""
    text = next(text for text in figure.axes[0].texts if text.get_text() == name)
    return Text.get_window_extent(text)


@pytest.fixture
def accuracy_figure(evaluation, monkeypatch):
    """The figure of `vlprune eval` for the methods of `SHARES`, as if they had been asked."""
    monkeypatch.setattr("vlprune.evaluation.accuracy.outcomes", lambda lines: [line["right"] for line in lines])

    def answer(cells, skip_unsupported, reference):
        asked = len(evaluation.questions)
        found = {}
        for cell in cells:
            name, _, keep = cell.partition("@")
            share = SHARES[name][keep == "64"] if keep else 1.0
            count = int(keep or 576)
            line = {"entering": count, "average": float(count), "answer": "yes", "kl": 0.0}
            found[cell] = [{**line, "right": i < round(share * asked)} for i in range(asked)]
        return found

    monkeypatch.setattr(evaluation, "ask", answer)
    methods = {name: {str(keep): get_method("random", keep=keep) for keep in (16, 64)} for name in SHARES}
    return evaluate_methods(evaluation, methods).figures["accuracy"]


def test_intervals_reach_where_they_say():
    curves = {"a": [(16, 99.0, 98.0, 99.4), (64, 90.0, 80.0, 95.0)]}
    (axes,) = plot_curves(curves, flat={}, x="tokens", y="right, %", title="?").axes
    (bars,) = axes.containers[0].lines[2]
    drawn = [sorted(segment[:, 1]) for segment in bars.get_segments()]
    assert drawn == [pytest.approx([98.0, 99.4]), pytest.approx([80.0, 95.0])]


def test_all_right_is_drawn_at_100():
    curves = {"a": [(16, 96.0, 90.0, 99.0), (64, 100.0, 90.0, 100.0)]}
    (axes,) = plot_curves(curves, flat={"all": 100.0}, x="tokens", y="right, %", title="?").axes
    ticks = {label.get_text(): place for place, label in zip(axes.get_yticks(), axes.get_yticklabels())}
    assert ticks["100"] == axes.containers[0].lines[0].get_ydata()[1] == axes.lines[0].get_ydata()[0] == 100
    heights = axes.transData.transform([(16, tick) for tick in ticks.values()])[:, 1]
    assert list(heights) == sorted(heights)
    assert heights[-1] < axes.bbox.y1


def test_errors_are_on_a_log_scale():
    """90, 99 and 99.9 % are as far apart, and what is drawn lies within the axes."""
    curves = {"a": [(16, 90.0, 60.0, 95.0), (32, 99.0, 98.0, 99.5), (64, 99.9, 99.0, 100.0)]}
    (axes,) = plot_curves(curves, flat={}, x="tokens", y="right, %", title="?").axes
    heights = axes.transData.transform([(16, share) for share in (60.0, 90.0, 99.0, 99.9, 100.0)])[:, 1]
    assert heights[2] - heights[1] == pytest.approx(heights[3] - heights[2])
    assert axes.bbox.y0 < heights[0] < heights[-1] < axes.bbox.y1
    back = axes.transData.inverted().transform([(1, height) for height in heights])[:, 1]
    assert back == pytest.approx([60.0, 90.0, 99.0, 99.9, 100.0])


def test_the_scale_is_explained():
    figure = plot_curves(flat_curves(2), flat={}, x="tokens", y="right, %", title="of what?", note="by what?")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "right, %\nerrors on a log scale: equal steps cut them by the same factor"
    assert (axes.get_xlabel(), axes.get_title(loc="left")) == ("tokens", "by what?")
    assert figure.get_suptitle() == "of what?"


def test_well_known_methods_look_the_same_in_every_plot():
    points = flat_curves(1)["curve 0"]
    looks = []
    for names in (["trim", "script", "random"], ["random", "oracle", "script", "visionzip"]):
        (axes,) = plot_curves(dict.fromkeys(names, points), flat={}, x="", y="", title="").axes
        looks.append({one.get_label(): one.lines[0].get_color() for one in axes.containers})
        assert len(set(looks[-1].values())) == len(names)
    assert [looks[0][name] for name in ("script", "random")] == [looks[1][name] for name in ("script", "random")]


def test_rows_are_drawn_from_the_top_with_their_intervals():
    rows = {
        "first": {"keep 64": (99.0, 98.0, 99.5), "keep 16": (90.0, 80.0, 95.0)},
        "second": {"keep 16": (50, 40, 60)},
    }
    figure = plot_rows(rows, x="right, %", title="which?", across={"all tokens": 99.9, "keep 16": 90.0})
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(rows)
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["keep 64", "keep 16", "all tokens"]
    values, _, (bars,) = axes.containers[1].lines
    assert list(values.get_xdata()) == [90.0, 50.0]
    assert [sorted(segment[:, 0]) for segment in bars.get_segments()] == [
        pytest.approx([80, 95]),
        pytest.approx([40, 60]),
    ]
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == [99.9, 90.0]
    assert dashed[1].get_color() == values.get_color()
    assert "log scale" in axes.get_xlabel()
    (plain,) = plot_rows(rows, x="points", title="which?", percentages=False).axes
    assert plain.get_xlabel() == "points"


@pytest.mark.parametrize("count", [1, 6, 10])
def test_each_line_is_labelled_at_its_end(count):
    curves = flat_curves(count)
    figure = plot_curves(curves, flat={"all tokens": 99.0}, x="tokens", y="right, %", title="?")
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    assert {text.get_text() for text in axes.texts} == {*curves, "all tokens"}
    assert axes.get_legend() is None
    right = axes.get_window_extent().x1
    boxes = [text_box(figure, name) for name in (*curves, "all tokens")]
    assert all(box.x0 > right and box.x1 <= figure.bbox.x1 for box in boxes)
    heights = sorted((box.y0, box.y1) for box in boxes)
    assert all(below[1] <= above[0] for below, above in pairwise(heights)), "labels overlap"
    for text in axes.texts:
        if text.get_text() in curves:
            assert text.xy == pytest.approx((64, 99.0))


def test_accuracy_has_seven_lines_by_its_rule(accuracy_figure):
    drawn = {text.get_text() for text in accuracy_figure.axes[0].texts}
    assert drawn == {"all 576 tokens", "script", "random", "oracle", "a", "b", "c"}
    assert len(accuracy_figure.axes[0].containers) == 6
    note = accuracy_figure.axes[0].get_title(loc="left")
    assert note == "script, random, oracle, and the best at the smallest budget; 14 more are in the table"


def test_panels_have_a_title_and_a_legend():
    figure = plot_panels([[("a $b$", np.zeros((2, 2, 3))), ("map", np.eye(2))]], title="Which?", low="few", high="many")
    assert figure.get_suptitle() == "Which?"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["many", "few"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [r"a \$b\$", "map"]
    colours = [patch.get_facecolor() for patch in figure.legends[0].get_patches()]
    shown = figure.axes[1].get_images()[0]
    assert colours == [pytest.approx(shown.cmap(shown.norm(value))) for value in (1.0, 0.0)]


def test_pictures_of_studies_say_what_they_show(evaluation):
    evaluation.keep = (64,)
    thresholds = get_study("thresholds").study(evaluation).figures["thresholds"]
    assert thresholds.get_suptitle() == "Which tokens count as redundant at a threshold τ, and their share"
    assert [text.get_text() for text in thresholds.legends[0].get_texts()] == [
        "redundant: mean cosine to the tokens around ≥ τ",
        "not redundant",
    ]
    preferences = get_study("preferences").study(evaluation).figures["preferences"]
    assert preferences.get_suptitle() == "Which tokens each family of methods prefers"
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in preferences.axes]
    assert titles[1:7] == [
        "attention in the vision tower",
        "relevance to the question",
        "little redundancy (similarity)",
        "DivPrune, earliest choices first",
        "QCSP alone, earliest choices first",
        "Script, earliest choices first",
    ]
    assert titles[7]  # the second row's question
    assert not any(titles[8:14])  # the rest stands above
    assert len(preferences.legends) == 1
