"""Who sees whom, as one figure: every cell is drawn by asking a geometry's `sees` and `sees_row`.

N tokens, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longshort.geometry import Causal, Geometry, Segments, Tiles

if TYPE_CHECKING:  # matplotlib is not part of the core install
    from matplotlib.axes import Axes

NOTHING, WINDOW, ROWS, INK, SOFT = "#eef0f3", "#2f6db5", "#ee8a2a", "#1d232b", "#5c6672"
GAP = 1.5  # cells between the tokens and the rows


def sees_tokens(geometry: Geometry, tokens: int) -> np.ndarray:
    """[N, N], True where the query of this line sees the key of this column."""
    at = np.arange(tokens)
    return geometry.sees(at[:, None], at[None, :])


def sees_rows(geometry: Geometry, tokens: int, rows: int) -> np.ndarray:
    """[N, R], True where the query of this line sees the global row of this column."""
    return geometry.sees_row(np.arange(tokens)[:, None], np.arange(rows)[None, :])


@dataclass(frozen=True)
class Panel:
    """A geometry over `tokens` tokens and `rows` global rows, and what to say of it."""

    geometry: Segments | Causal
    tokens: int
    rows: int
    title: str
    setting: str
    explained: str


PANELS = (
    Panel(
        Segments(window=4),
        tokens=24,
        rows=6,
        title="Sequence, both directions",
        setting="24 tokens, window 4, rank 6",
        explained="A token sees its home segment of 4,\n2 more tokens on either side, and all rows.",
    ),
    Panel(
        Causal(window=8, segment=4, rank=1, kind="sliding"),
        tokens=24,
        rows=6,
        title="Causal, sliding window",
        setting="24 tokens, window 8, segment 4, rank 1",
        explained="A token sees the last 8 tokens, itself included,\nand the row of each segment of 4 before its own.",
    ),
    Panel(
        Causal(window=8, segment=4, rank=1, kind="segment"),
        tokens=24,
        rows=6,
        title="Causal, segment window",
        setting="24 tokens, window 8, segment 4, rank 1",
        explained="A token sees its home block of 8 up to itself,\nthe 8 tokens before that block, and the same rows.",
    ),
)
TILES, TILES_ROWS = Tiles(window=4, height=12, width=12), 4
TILES_QUERIES = {"a corner token": (1, 1), "a token at the edge": (6, 10), "a token in the middle": (5, 6)}  # (y, x)


def draw_visibility(path: Path) -> None:
    """Write the figure as a PNG: the three sequence geometries above, the grid for three of its tokens below."""
    from matplotlib.figure import Figure  # without pyplot a figure needs no display and is drawn by Agg
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    figure = Figure(figsize=(15, 11.4), dpi=120, layout=ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.08))
    figure.suptitle("Long-short attention: who sees whom", fontsize=20, fontweight="bold", color=INK)
    above, below = figure.subplots(2, 3, height_ratios=(1.1, 1))
    for axes, panel in zip(above, PANELS, strict=True):
        draw_sequence(axes, panel)
    for axes, (name, query) in zip(below, TILES_QUERIES.items(), strict=True):
        draw_grid(axes, TILES, TILES_ROWS, name, query)
    labels = {WINDOW: "seen: local window", ROWS: "seen: global rows", NOTHING: "not seen", INK: "the query (grid)"}
    handles = [Patch(facecolor=colour, label=label) for colour, label in labels.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=12)
    figure.savefig(path)


def draw_sequence(axes: Axes, panel: Panel) -> None:
    """Queries downwards, keys and then rows to the right."""
    draw_cells(axes, sees_tokens(panel.geometry, panel.tokens), WINDOW)
    draw_cells(axes, sees_rows(panel.geometry, panel.tokens, panel.rows), ROWS, left=panel.tokens + GAP)
    name_axes(axes, "query", "key", size=panel.tokens, columns=panel.rows, rows_end=panel.tokens)
    write_title(axes, panel.title, panel.setting, panel.explained)


def draw_grid(axes: Axes, geometry: Tiles, rows: int, name: str, query: tuple[int, int]) -> None:
    """The grid as one query sees it, and the rows in a column beside it."""
    from matplotlib.patches import Rectangle

    (y, x), grid = query, (geometry.height, geometry.width)
    i, tokens = y * geometry.width + x, geometry.height * geometry.width
    sees = sees_tokens(geometry, tokens)
    draw_cells(axes, sees[i].reshape(grid), WINDOW)
    draw_cells(axes, sees_rows(geometry, tokens, rows)[i][:, None], ROWS, left=geometry.width + GAP)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=INK, edgecolor="white"))
    group = np.argwhere((sees == sees[i]).all(axis=1).reshape(grid))  # the home group: all who see the same tokens
    (top, left), (height, width) = group.min(axis=0), np.ptp(group, axis=0) + 1
    axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=INK, linewidth=2, clip_on=False))
    name_axes(axes, "key, y", "key, x", size=geometry.width, columns=1, rows_end=rows)
    write_title(
        axes,
        f"Grid, {name}",
        f"{geometry.height} × {geometry.width} tokens, window {geometry.window}, rank {rows}; query at y {y}, x {x}",
        f"It sees its home group of {geometry.window} × {geometry.window} (outlined),\n"
        f"{geometry.reach} more tokens on all sides, and all rows.",
    )


def draw_cells(axes: Axes, seen: np.ndarray, colour: str, left: float = 0.0) -> None:
    """A cell for each entry of `seen`, coloured where it is True."""
    from matplotlib.colors import ListedColormap

    lines, columns = seen.shape
    cells = axes.pcolormesh(
        left + np.arange(columns + 1), np.arange(lines + 1), seen, edgecolors="white", linewidth=0.8
    )
    cells.set(cmap=ListedColormap([NOTHING, colour]), clim=(0, 1))


def name_axes(axes: Axes, down: str, right: str, *, size: int, columns: int, rows_end: int) -> None:
    """Name what goes down and to the right over `size` cells, and the `columns` of rows that end at `rows_end`."""
    axes.set(aspect="equal", xlim=(0, size + GAP + columns), ylim=(size, 0), anchor="W")  # the first query on top
    ticks = np.arange(0, size, 4)
    axes.set_xticks(ticks + 0.5, ticks, color=SOFT)
    axes.set_yticks(ticks + 0.5, ticks, color=SOFT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_ylabel(down, fontsize=12, color=INK)
    style: dict[str, Any] = {
        "textcoords": "offset points",
        "ha": "center",
        "va": "top",
        "fontsize": 12,
        "annotation_clip": False,
    }
    axes.annotate(right, (size / 2, size), (0, -18), color=INK, **style)
    middle = size + GAP + columns / 2
    axes.annotate("rows", (middle, rows_end), (0, -4), color=ROWS, fontweight="bold", **style)


def write_title(axes: Axes, title: str, setting: str, explained: str) -> None:
    axes.set_title(title, fontsize=14, fontweight="bold", color=INK, loc="left", pad=62)
    style: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(setting, (0, 1), (0, 42), fontsize=11, color=INK, **style)
    axes.annotate(explained, (0, 1), (0, 8), fontsize=10.5, color=SOFT, **style)
