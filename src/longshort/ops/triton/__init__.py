"""The fused implementation: kernels in Triton behind the signature of `reference`.

The package is imported only where Triton is installed. B batch, H heads, N queries, M keys, R rows, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry, Tiles
from longshort.ops.positions import RelativePositions
from longshort.ops.triton.causal_op import causal_attention
from longshort.ops.triton.launch import tile_size
from longshort.ops.triton.tiles_op import bias_of_block, bias_of_keys, tiles_attention


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
    seed = torch.randint(2**62, (1,), device=q.device) if dropout else None
    operands = (q, k, v, k_global, v_global, mask, mask_global)
    if isinstance(geometry, Causal):
        tables = positions or (None, None, None, None)
        rule = (geometry.window, geometry.segment, geometry.rank, geometry.kind == "sliding")
        return causal_attention(*operands, *tables, seed, *rule, start, scale, dropout)[0]
    height, width = (geometry.height, geometry.width) if isinstance(geometry, Tiles) else (q.shape[2], 1)
    bias_keys = None
    if bias is not None and isinstance(geometry, Tiles):
        bias_keys = bias_of_keys(bias.detach(), geometry, tile_size(q))
        bias = bias_of_block(bias, geometry, tile_size(q))
    return tiles_attention(*operands, bias, bias_keys, seed, geometry.window, height, width, scale, dropout)[0]
