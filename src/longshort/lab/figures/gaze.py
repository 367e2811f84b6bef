"""Figures of where one token looks: a patch over its image, a character over its text.

H height, W width of a grid of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from longshort.lab.figures.looks import Look, look_of, watching
from longshort.models.pyramid import Pyramid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW, ROWS, INK, SOFT = "#2f6db5", "#d1662a", "#1d2430", "#5b6673"
LINE = 80  # characters of a line of text


def looks_at(model: Pyramid, image: Tensor, at: tuple[int, int]) -> list[tuple[Look, tuple[int, int], tuple[int, int]]]:
    """For the last block of every stage: the look of the patch that has the pixel `at` (y, x) of an image [3, H, W],
    the grid's size, and the patch's place in it."""
    height, width = image.shape[1:]
    if not (0 <= at[0] < height and 0 <= at[1] < width):
        raise ValueError(f"at must be a pixel (y, x) of the image, which is {height} × {width}, got {at}")
    with watching(model.eval()) as seen, torch.no_grad():
        levels = model.levels(image[None])
    found, blocks = [], 0
    for number, (stage, stride, (_, size)) in enumerate(zip(model.parts, model.strides, levels, strict=True), start=1):
        blocks += len(stage.blocks)
        place = (at[0] // stride, at[1] // stride)
        layer = list(stage.blocks)[-1].attention
        assert isinstance(layer, nn.Module)
        name = f"stage {number}, block {blocks}"
        found.append((look_of(layer, seen[layer], place[0] * size[1] + place[1], name, size), size, place))
    return found


def draw_gaze(
    looks: Sequence[tuple[Look, tuple[int, int], tuple[int, int]]], image: np.ndarray, path: Path, *, title: str
) -> None:
    """Write a PNG: a line for each layer, with what the window and the rows see of the image [H, W, 3]."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = image.shape[:2]
    figure = Figure(figsize=(12.6, 3.4 * len(looks) + 0.9), dpi=90, layout="constrained")
    grid = figure.subplots(len(looks), 4, squeeze=False)
    for line, (look, size, place) in zip(grid, looks, strict=True):
        stride_y, stride_x = height / size[0], width / size[1]
        window, rows = 100 * look.window.sum().item(), 100 * look.rows.sum().item()
        others = f", {100 * look.others:.0f} % to CLS" if look.others > 0.005 else ""
        titles, maps = [f"{look.name}: the patch"], list[Tensor | None]([None])
        if rows == 0 and look.others + window / 100 > 0.999:  # full attention
            titles += [f"{window:.0f} % to all patches{others}"]
            maps += [look.window]
        else:
            titles += [f"{window:.0f} % to its window", f"{rows:.0f} % through the rows", f"both{others}"]
            maps += [look.window, look.rows, look.window + look.rows]
        for axes in line[len(maps) :]:
            axes.axis("off")
        for axes, text, weights in zip(line, titles, maps, strict=False):
            axes.imshow(image, extent=(0, width, height, 0), alpha=1.0 if weights is None else 0.35)
            if weights is not None:
                shade(
                    axes,
                    weights.view(size).numpy(),
                    WINDOW if axes is line[1] else ROWS if axes is line[2] else INK,
                    (width, height),
                )
            corner = (place[1] * stride_x, place[0] * stride_y)
            axes.add_patch(Rectangle(corner, stride_x, stride_y, fill=False, edgecolor="#ffd400", linewidth=2.2))
            axes.set_title(text, loc="left", fontsize=11, color=INK)
            axes.set(xlim=(0, width), ylim=(height, 0))
            axes.axis("off")
    note = (
        "Framed: the patch that looks. Darker: it gives more attention there, each picture on its own scale.\nRows are "
        "averages of all patches, made anew for each image; what a row gets is drawn on the patches that it averages."
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    figure.supxlabel(note, x=0.01, ha="left", fontsize=10.5, color=SOFT)
    figure.savefig(path)


def shade(axes: Axes, weights: np.ndarray, colour: str, sides: tuple[int, int]) -> None:
    """Over the image, the more of the colour the higher a weight."""
    from matplotlib.colors import to_rgb

    most = weights.max()
    layer = np.ones((*weights.shape, 4)) * (*to_rgb(colour), 0.0)
    layer[..., 3] = 0.85 * weights / most if most > 0 else 0.0
    axes.imshow(layer, extent=(0, sides[0], sides[1], 0), interpolation="nearest")


@torch.no_grad()
def looks_back(model: nn.Module, text: bytes, at: int) -> list[Look]:
    """Of character number `at` of a text, layer by layer of a language model."""
    if not 0 <= at < len(text):
        raise ValueError(f"at must be a character of the text, 0 to {len(text) - 1}, got {at}")
    tokens = torch.tensor(list(text[: at + 1]))[None]
    with watching(model.eval()) as seen:
        model(tokens)
    return [look_of(layer, given, at, f"layer {i}") for i, (layer, given) in enumerate(seen.items(), start=1)]


def draw_strip(looks: Sequence[Look], text: bytes, path: Path, *, title: str) -> None:
    """Write a PNG: the text, each character shaded by what its window and its rows give it, a mean over layers."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    window, rows = (torch.stack([getattr(look, part) for look in looks]).mean(0).numpy() for part in ("window", "rows"))
    shown = text[: len(window)].decode("latin-1")
    lines = -(-len(shown) // LINE)
    figure = Figure(figsize=(0.135 * LINE + 0.6, 0.3 * 2 * lines + 2.4), dpi=110)
    parts = (("through its window", window, WINDOW), ("through the rows", rows, ROWS))
    boxes = figure.subplots(2, 1)
    for axes, (name, weights, colour) in zip(boxes, parts, strict=True):
        scale = max(float(weights.max()), 1e-12)
        for i, character in enumerate(shown):
            x, y = i % LINE, i // LINE
            axes.add_patch(
                Rectangle((x, y), 1, 1, color=colour, alpha=0.85 * float(np.sqrt(weights[i] / scale)), linewidth=0)
            )
            if i == len(shown) - 1:
                axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=INK, linewidth=1.6))
            printable = character if character.isprintable() else "·"
            axes.text(
                x + 0.5, y + 0.55, printable, family="monospace", fontsize=8.5, ha="center", va="center", color=INK
            )
        axes.set(xlim=(0, LINE), ylim=(lines, 0))
        axes.axis("off")
        axes.set_title(f"{100 * weights.sum():.0f} % of attention {name}", loc="left", fontsize=11, color=colour)
    figure.suptitle(title, x=0.03, ha="left", fontsize=13, fontweight="bold", color=INK)
    note = f"The framed character looks back; mean of {len(looks)} layers. Darker: more, each part on its own scale."
    figure.text(0.03, 0.02, note, fontsize=9.5, color=SOFT)
    figure.subplots_adjust(
        left=0.03, right=0.98, top=1 - 0.75 / figure.get_figheight(), bottom=0.4 / figure.get_figheight()
    )
    figure.savefig(path)
