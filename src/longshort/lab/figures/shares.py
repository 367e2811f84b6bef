"""Where attention goes: how much of each layer's softmax falls on the rows, and how much on the window.

B batch, H heads, N tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longshort.nn import CausalLongShortAttention


@torch.no_grad()
def shares_of_rows(model: nn.Module, tokens: Tensor, *rest: Any) -> list[Tensor]:
    """Of every causal long-short layer, in order: the part of the attention that rows get, [N, H], a mean over B."""
    found: list[Tensor] = []

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(layer, CausalLongShortAttention)
        x, cache = args[0], args[1] if len(args) > 1 else None
        q, seen, tables = layer.inputs(x, cache)
        # values of 1 for rows and 0 for keys: what comes out is the rows' part
        seen = seen._replace(v=torch.zeros_like(seen.v), v_global=torch.ones_like(seen.v_global))
        out = layer.attend(q, seen, tables)  # [B, H, N, D]
        found.append(out[..., 0].float().mean(dim=0).T)

    layers = [m for m in model.modules() if isinstance(m, CausalLongShortAttention)]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        model.eval()
        model(tokens, *rest)
    finally:
        for handle in handles:
            handle.remove()
    return found


@torch.no_grad()
def shares_on(model: nn.Module, text: np.ndarray, length: int) -> list[Tensor]:
    """Of a language model, on the second block of a text of bytes, so that there is a past to look back on."""
    length = min(length, len(text) // 2)
    if length < 1:
        raise ValueError(f"text of {len(text)} bytes is too short to look at")
    tokens = torch.from_numpy(text[: 2 * length].copy())[None].long()
    _, caches = model.eval()(tokens[:, :length])
    return shares_of_rows(model, tokens[:, length:], caches)


def draw_shares(shares: Sequence[Tensor], path: Path, *, title: str) -> None:
    """Write a PNG: a bar a layer, divided into window and rows; dots are the heads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    names = [str(i + 1) for i in range(len(shares))]
    rows = [100 * s.mean().item() for s in shares]
    axes.bar(names, [100 - r for r in rows], color="#2f6db5", width=0.6, label="window: the last characters")
    axes.bar(
        names, rows, bottom=[100 - r for r in rows], color="#d1662a", width=0.6, label="rows: all earlier segments"
    )
    for i, s in enumerate(shares):
        heads = 100 - 100 * s.mean(dim=0)
        axes.plot([i] * len(heads), heads.tolist(), "o", color="white", markeredgecolor="#333b45", markersize=4.5)
        axes.annotate(f"{rows[i]:.0f} % rows", (i, 100), (0, 4), textcoords="offset points", ha="center", fontsize=9)
    axes.plot([], [], "o", color="white", markeredgecolor="#333b45", markersize=4.5, label="each head's border")
    axes.set(xlabel="layer", ylabel="% of attention", ylim=(0, 100))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
    axes.set_title(title, loc="left", fontsize=12, pad=18)
    figure.savefig(path)
