"""Learning curves: every number of a log where it belongs."""

import math

import pytest

from longshort.analysis.curves import draw_curves

LOG = [
    {"step": 10, "loss": 2.0, "seconds": 1.0},
    {"step": 20, "loss": 1.0, "seconds": 3.0},
    {"step": 20, "bpc": 1.5},
]


@pytest.mark.parametrize(("against", "places", "judged"), [("step", [10, 20], [20]), ("seconds", [1.0, 3.0], [3.0])])
def test_lines_and_points(tmp_path, monkeypatch, against, places, judged):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: figures.append(self))
    draw_curves({"a": LOG, "b": LOG[:2]}, tmp_path / "a.png", title="t", against=against, lines={"gzip": 2.5})
    axes = figures[0].axes[0]
    training, development, other, level = axes.get_lines()
    assert list(training.get_xdata()) == places == list(other.get_xdata())
    assert list(training.get_ydata()) == pytest.approx([2 / math.log(2), 1 / math.log(2)])
    assert list(development.get_xdata()) == judged and list(development.get_ydata()) == [1.5]
    assert list(level.get_ydata()) == [2.5, 2.5]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a, training", "a, development", "b, training"]
    assert axes.get_xlabel() == against
