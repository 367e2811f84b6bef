"""The figure shows what the geometries say, cell by cell."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from longshort.geometry import Causal, Segments, Tiles
from longshort.lab.figures.visibility import (
    PANELS,
    TILES,
    TILES_QUERIES,
    draw_grid,
    draw_sequence,
    draw_visibility,
    sees_rows,
    sees_tokens,
)


def drawn(axes):
    """What the axes show of tokens and of rows, as 0 and 1."""
    return [np.asarray(cells.get_array()).astype(int).tolist() for cells in axes.collections]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_sequence_panel_is_the_predicate(panel):
    axes = Figure().subplots()
    draw_sequence(axes, panel)
    tokens = range(panel.tokens)
    assert drawn(axes) == [
        [[int(panel.geometry.sees(i, j)) for j in tokens] for i in tokens],
        [[int(panel.geometry.sees_row(i, row)) for row in range(panel.rows)] for i in tokens],
    ]


@pytest.mark.parametrize(("y", "x"), TILES_QUERIES.values())
def test_grid_panel_is_the_predicate(y, x):
    axes = Figure().subplots()
    draw_grid(axes, TILES, 3, "a token", (y, x))
    i = y * TILES.width + x
    grid = [[int(TILES.sees(i, a * TILES.width + b)) for b in range(TILES.width)] for a in range(TILES.height)]
    assert drawn(axes) == [grid, [[1], [1], [1]]]


def test_grid_outlines_the_home_group():
    axes = Figure().subplots()
    draw_grid(axes, Tiles(4, 12, 12), 1, "a token", (6, 10))
    _, outline = axes.patches
    assert (*outline.get_xy(), outline.get_width(), outline.get_height()) == (8, 4, 4, 4)


def test_tokens_written_out():
    lines = ["".join(".x"[seen] for seen in line) for line in sees_tokens(Segments(2), 6).astype(int)]
    assert lines == ["xxx...", "xxx...", ".xxxx.", ".xxxx.", "...xxx", "...xxx"]


def test_rows_written_out():
    seen = sees_rows(Causal(window=2, segment=2, rank=1), 6, 3).astype(int).tolist()
    assert seen == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0]]


def test_figure_is_a_png_with_no_text_over_text(tmp_path, figures):
    path = tmp_path / "visibility.png"
    draw_visibility(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    boxes = [text.get_window_extent() for text in figure.findobj(is_written)]
    boxes = [box for box in boxes if box.width > 1]  # labels of the ticks' other sides have no place
    pairs = [(a, b) for at, a in enumerate(boxes) for b in boxes[:at] if a.overlaps(b)]
    assert len(boxes) > 30 and not pairs


def is_written(artist):
    return isinstance(artist, Text) and artist.get_visible() and bool(artist.get_text())
