"""The vision models: their parameters and how much they compute, beside the paper's Table 5.

As the authors' code computes it, a window at the border reaches over it, where zeros are multiplied; ours leaves those
out. The weighted value of a single global token is no product of matrices there, and fvcore does not count it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longshort.geometry import Tiles
from longshort.lab.bench.flops import FORWARD, visible_pairs
from longshort.lab.bench.macs import count
from longshort.lab.runs.files import write_json
from longshort.models.cvt import CvT
from longshort.models.pyramid import Pyramid
from longshort.models.vil import ViL
from longshort.nn import GridLongShortAttention

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console


@dataclass(frozen=True)
class Line:
    """A model of the paper, with its figures: G multiply-accumulates and M parameters."""

    name: str
    make: Callable[[], Pyramid]
    size: int
    macs: float
    parameters: float


LINES = [
    Line("ViL-LS-medium, 224", partial(ViL.preset, "medium"), 224, 8.72, 39.80),
    Line("ViL-LS-base, 224", partial(ViL.preset, "base"), 224, 13.39, 55.83),
    Line("ViL-LS-medium, 384", partial(ViL.preset, "medium_384"), 384, 28.74, 39.95),
    Line("CvT*-LS-13, 224", partial(CvT.preset, "ls_13"), 224, 4.9, 20.3),
    Line("CvT*-LS-17, 224", partial(CvT.preset, "ls_17"), 224, 9.8, 23.7),
    Line("CvT*-LS-21, 224", partial(CvT.preset, "ls_21"), 224, 7.9, 32.1),
    Line("CvT*-LS-21S, 224", partial(CvT.preset, "ls_21s"), 224, 11.3, 30.1),
    Line("CvT*-LS-21, 384", partial(CvT.preset, "ls_21_384"), 384, 23.9, 32.1),
    Line("CvT*-LS-21, 448", partial(CvT.preset, "ls_21_448"), 448, 34.2, 32.1),
    Line("CvT-13, 224", partial(CvT.preset, "13"), 224, 6.7, 20.0),
    Line("CvT-21, 224", partial(CvT.preset, "21"), 224, 10.1, 32.0),
    Line("CvT-13, 384", partial(CvT.preset, "13"), 384, 31.9, 20.0),
    Line("CvT-21, 384", partial(CvT.preset, "21"), 384, 45.0, 32.0),
]


def figures(line: Line) -> dict[str, Any]:
    model = line.make()
    ours = count(model, torch.zeros(1, model.channels, line.size, line.size))
    return {
        "model": line.name,
        "paper": {"macs": line.macs, "parameters": line.parameters},
        "macs": ours / 1e9,
        "macs_as_released": (ours + beyond_borders(model, line.size)) / 1e9,
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
    }


def beyond_borders(model: Pyramid, side: int) -> int:
    """What the authors' code has to multiply more than ours, less what fvcore does not see of it."""
    more = 0
    for stage, stride in zip(model.parts, model.strides, strict=True):
        grid = -(-side // stride)
        for block in stage.blocks:
            layer = block.attention
            if isinstance(layer, GridLongShortAttention):
                tiles = Tiles(layer.window, grid, grid)
                whole = grid**2 * (tiles.window + 2 * tiles.reach) ** 2
                more += layer.width * FORWARD * (whole - visible_pairs(tiles, grid**2, 0))
                more -= layer.width * grid**2 if layer.global_tokens == 1 else 0
    return more


def bench_vision_macs(lines: Sequence[Line], out: Path, *, console: Console) -> list[dict[str, Any]]:
    """Count, print the table, write it to `out`."""
    from rich.table import Table

    out.parent.mkdir(parents=True, exist_ok=True)
    title = "10⁹ multiply-accumulates of one image, as fvcore counts, and 10⁶ parameters"
    table = Table(title=title, title_justify="left")
    table.add_column("model and size")
    for column in ("paper", "as the authors' code", "ours", "parameters: paper", "ours"):
        table.add_column(column, justify="right")
    facts = []
    for line in lines:
        found = figures(line)
        facts.append(found)
        as_released, ours, parameters = (found[name] for name in ("macs_as_released", "macs", "parameters"))
        table.add_row(
            line.name,
            f"{line.macs:g}",
            f"{as_released:.3f}",
            f"{ours:.3f}",
            f"{line.parameters:g}",
            f"{parameters:.3f}",
        )
        write_json(out, {"models": facts})
    console.print(table)
    console.print(f"written to {out}", soft_wrap=True, highlight=False)
    return facts
