"""Learning curves: every number of a log where it belongs."""

import math

import pytest

from longshort.lab.figures.curves import draw_curves

LOG = [
    {"step": 10, "loss": 2.0, "seconds": 1.0},
    {"step": 20, "loss": 1.0, "seconds": 3.0},
    {"step": 20, "bpc": 1.5},
]


@pytest.mark.parametrize(("against", "places", "measured"), [("step", [10, 20], [20]), ("seconds", [1.0, 3.0], [3.0])])
def test_lines_and_points(tmp_path, figures, against, places, measured):
    draw_curves({"a": LOG, "b": LOG[:2]}, tmp_path / "a.png", title="t", against=against, lines={"gzip": 2.5})
    axes = figures[0].axes[0]
    training, development, other, level = axes.get_lines()
    assert list(training.get_xdata()) == places == list(other.get_xdata())
    assert list(training.get_ydata()) == pytest.approx([2 / math.log(2), 1 / math.log(2)])
    assert list(development.get_xdata()) == measured and list(development.get_ydata()) == [1.5]
    assert list(level.get_ydata()) == [2.5, 2.5]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a, training", "a, development", "b, training", "gzip 2.50"]
    assert axes.get_xlabel() == against


@pytest.mark.parametrize(("runs", "first_shown"), [(1, 4), (2, 10)])
def test_the_fall_at_the_start_leaves_room_for_differences(tmp_path, figures, runs, first_shown):
    """The first tenth may leave the figure; of several runs, the first quarter. Nothing later does."""
    log = [{"step": i, "loss": 40.0 - i, "seconds": float(i)} for i in range(40)]
    draw_curves({str(i): log for i in range(runs)}, tmp_path / "a.png", title="t")
    axes = figures[0].axes[0]
    low, high = axes.get_ylim()
    shown = [i for i, y in enumerate(axes.get_lines()[0].get_ydata()) if low < y < high]
    assert first_shown - 4 < shown[0] <= first_shown and shown == list(range(shown[0], 40))


def test_classifiers_have_another_unit(tmp_path, figures):
    log = [{"step": 10, "loss": 2.0, "seconds": 1.0}, {"step": 10, "accuracy": 0.5, "dev_loss": 1.5}]
    draw_curves({"a": log}, tmp_path / "a.png")
    axes = figures[0].axes[0]
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[2.0], [1.5]]
    assert axes.get_ylabel() == "cross entropy in nats"
    assert axes.get_title("left") == "Cross entropy in nats while training"
    with pytest.raises(ValueError, match="a and the others are of different kinds"):
        draw_curves({"a": log, "b": LOG}, tmp_path / "b.png")
