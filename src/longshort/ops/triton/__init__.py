"""The fused implementation: kernels in Triton behind the signature of `reference`.

The package is imported only where Triton is installed. B batch, H heads, N queries, M keys, R rows, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry, Tiles
from longshort.ops.positions import RelativePositions
from longshort.ops.triton.causal_op import causal_attention
from longshort.ops.triton.operator import Operator
from longshort.ops.triton.tiles_op import tiles_attention


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_global: Tensor,
    v_global: Tensor,
    *,
    geometry: Geometry,
    mask: Tensor | None,
    mask_global: Tensor | None,
    positions: RelativePositions | None,
    bias: Tensor | None,
    dropout: float,
    start: int,
    scale: float,
) -> Tensor:
    operator, rest = operator_for(q, geometry, mask, mask_global, positions, bias, dropout, start, scale, q.shape[2])
    return operator(q, k, v, k_global, v_global, *rest)[0]


def operator_for(
    like: Tensor,
    geometry: Geometry,
    mask: Tensor | None,
    mask_global: Tensor | None,
    positions: RelativePositions | None,
    bias: Tensor | None,
    dropout: float,
    start: int,
    scale: float,
    tokens: int,
) -> tuple[Operator, tuple[Any, ...]]:
    """The kernels for a geometry, and what they take beside queries, keys, values and rows, which are `like` this."""
    seed = torch.randint(2**62, (1,), device=like.device) if dropout else None
    if isinstance(geometry, Causal):
        tables = positions or (None, None, None, None)
        rule = (geometry.window, geometry.segment, geometry.rank, geometry.kind == "sliding")
        return causal_attention, (mask, mask_global, *tables, seed, *rule, start, scale, dropout)
    height, width = (geometry.height, geometry.width) if isinstance(geometry, Tiles) else (tokens, 1)
    return tiles_attention, (mask, mask_global, bias, seed, geometry.window, height, width, scale, dropout)
