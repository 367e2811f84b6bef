"""How alike the patches of an image become from layer to layer: the paper's figure of over-smoothing.

B images, N patches, C width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longshort.models.pyramid import Pyramid

COLOURS = ("#1f5f8b", "#b0492f", "#2f8f5b", "#8a5fb0", "#8a8a8a")


def mean_cosine(x: Tensor) -> Tensor:
    """Of all pairs of different patches of each image, [B], from patches [B, N, C]; of one patch, 1."""
    count = x.shape[1]
    if count < 2:
        return torch.ones(len(x), device=x.device)
    unit = torch.nn.functional.normalize(x.float(), dim=2)
    return (unit.sum(1).square().sum(1) - count) / (count * (count - 1))


@torch.no_grad()
def similarities(model: Pyramid, batches: Iterable[Tensor]) -> list[float]:
    """After every block, the mean over images [B, 3, H, W]."""
    found: list[list[Tensor]] = []  # by block, of each batch
    handles = []
    for stage in model.parts:
        for block in stage.blocks:
            found.append([])
            handles.append(block.register_forward_hook(partial(note, found[-1], stage.global_tokens)))
    try:
        for batch in batches:
            model.eval().levels(batch)
    finally:
        for handle in handles:
            handle.remove()
    if not found[0]:
        raise ValueError("there is no image to look at")
    return [torch.cat(each).mean().item() for each in found]


def note(found: list[Tensor], first: int, block: Any, given: Any, out: Tensor) -> None:
    """After a block, without its global tokens."""
    found.append(mean_cosine(out[:, first:]).cpu())


def draw_similarities(found: Mapping[str, Sequence[float]], path: Path, *, images: int) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS * len(found), found.items(), strict=False):
        axes.plot(range(1, len(values) + 1), values, marker="o", color=colour, label=name)
    axes.set(xlabel="block", ylabel="cosine similarity of patches")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title(
        f"How alike the patches of an image are, mean over {images:,} images\n"
        "The higher, the less diverse: at 1, all patches say the same",
        loc="left",
        fontsize=11,
    )
    figure.savefig(path)
