"""The operation, and the one door to it: checks the input, chooses the implementation.

B batch, H heads, N queries, M keys, R rows, D head width.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from longshort.geometry import Geometry
from longshort.ops.check import check_attention, check_mask, refuse
from longshort.ops.chunked import chunked
from longshort.ops.fused import fused, takes_kernels, why_not
from longshort.ops.implementation import Implementation, check_implementation
from longshort.ops.positions import RelativePositions
from longshort.ops.precision import autocast_dtype
from longshort.ops.projection import dynamic_projection
from longshort.ops.reference import reference

__all__ = ["Implementation", "RelativePositions", "check_implementation", "dynamic_projection", "long_short_attention"]

IMPLEMENTATIONS = {"reference": reference, "chunked": chunked, "triton": fused}
FEW = 16  # for this many queries the dense form does no more work than a block of the chunked one


def long_short_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_global: Tensor,
    v_global: Tensor,
    *,
    geometry: Geometry,
    mask: Tensor | None = None,
    mask_global: Tensor | None = None,
    positions: RelativePositions | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    start: int = 0,
    scale: float | None = None,
    impl: Implementation = "auto",
) -> Tensor:
    """One softmax of every query over the keys its geometry lets it see and over the global rows.

    q: [B, H, N, D].  k, v: [B, H, M, D]; M = N but for the causal form, where earlier tokens may stand in front.
    k_global, v_global: [B, H, R, D]; R may be 0. For the causal form, rows of the last R // rank finished segments.
    mask: [B, M], True on real tokens; padding is not seen, and its output is 0.  mask_global: [B, R], for the rows.
    positions: Transformer-XL's, for Causal.  bias: [H, offsets, offsets], added to local scores, for Tiles.
    dropout: on the attention weights (the caller passes 0 outside training).
    start: position in the text of the first query, for Causal.  scale: 1 / √D unless given.
    impl: "reference" (dense, O(N²)), "chunked" (linear memory, any device), "triton" (fused kernels, CUDA), or "auto".
    """
    dtype = autocast_dtype(q)
    if dtype is not None and q.dtype != torch.float64:  # which autocast leaves alone
        q, k, v, k_global, v_global = (t.to(dtype) for t in (q, k, v, k_global, v_global))
        bias = None if bias is None else bias.to(dtype)
        positions = None if positions is None else RelativePositions(*(t.to(dtype) for t in positions))
    check_implementation(impl)
    check_attention(q, k, v, k_global, v_global, geometry, positions, bias, dropout, start)
    check_mask("mask", mask, k, k.shape[2])
    check_mask("mask_global", mask_global, k_global, k_global.shape[2])
    obstacle = why_not(q, geometry, positions is not None, scale)
    if impl == "triton" and obstacle is not None:
        refuse(f"impl='triton' cannot run here: {obstacle}")
    if impl == "auto" and statically_known_true(q.shape[2] <= FEW):  # a length that is only a symbol is not few
        impl = "reference"
    elif impl == "auto":
        impl = "triton" if obstacle is None and takes_kernels(q) else "chunked"
    with nullcontext() if dtype is None else torch.autocast(q.device.type, enabled=False):
        out = IMPLEMENTATIONS[impl](
            q,
            k,
            v,
            k_global,
            v_global,
            geometry=geometry,
            mask=mask,
            mask_global=mask_global,
            positions=positions,
            bias=bias,
            dropout=dropout,
            start=start,
            scale=q.shape[3] ** -0.5 if scale is None else scale,
        )
    if mask is not None:
        out = out.masked_fill(~mask[:, None, k.shape[2] - q.shape[2] :, None], 0.0)
    if mask_global is not None and geometry.window == 0:
        out = out.masked_fill(~mask_global.any(dim=1)[:, None, None, None], 0.0)  # these queries see nothing
    return out
