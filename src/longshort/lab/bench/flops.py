"""How much there is to compute: pairs of a query and a key or row that it sees, and their products."""

from __future__ import annotations

from typing import Literal

import torch

from longshort.geometry import Causal, Geometry, Segments, Tiles

Pass = Literal["forward", "forward + backward", "forward + backward, CUDA graph"]

FORWARD = 2  # products of head width per pair: the score, and the weighted value
BACKWARD = 5  # the score again, and the gradients of weight, value, query and key
POSITIONS_FORWARD = 1  # query and position
POSITIONS_BACKWARD = 3  # the same again, and the gradients of both


def visible_pairs(geometry: Geometry, tokens: int, rows: int) -> int:
    """Pairs in one head of one sequence: what `sees` and `sees_row` would count, without their N × (N + R) table."""
    if isinstance(geometry, Tiles):
        axes = (local_pairs(geometry.axis, side) for side in (geometry.height, geometry.width))
        return next(axes) * next(axes) + tokens * rows
    if isinstance(geometry, Causal):
        far = geometry.rows_before(torch.arange(tokens)).clamp(max=rows).sum()
        return local_pairs(geometry, tokens) + int(far)
    return local_pairs(geometry, tokens) + tokens * rows


def local_pairs(geometry: Segments | Causal, tokens: int) -> int:
    """Each query sees the keys first to last, as far as there are any."""
    i = torch.arange(tokens)
    window = geometry.window
    if isinstance(geometry, Segments):
        home = i // max(window, 1) * window
        first, last = home - geometry.reach, home + window + geometry.reach - 1
    else:
        first = i - window + 1 if geometry.kind == "sliding" else (i // window - 1) * window
        last = i
    return int((last.clamp(max=tokens - 1) - first.clamp(min=0) + 1).sum())


def products(which: Pass, *, positions: bool) -> int:
    """Products of two vectors of the head's width, for each visible pair."""
    forward = FORWARD + positions * POSITIONS_FORWARD
    return forward if which == "forward" else forward + BACKWARD + positions * POSITIONS_BACKWARD
