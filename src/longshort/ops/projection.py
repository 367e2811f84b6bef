"""Dynamic projection (Eq. 3): summarise a sequence, or each segment of it, in `rank` rows.

B batch, H heads, N tokens, D head width, R rank, S segments, L tokens of a segment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longshort.ops.check import check_mask, check_projection, refuse
from longshort.ops.fused import project, takes_kernels, why_not_here
from longshort.ops.implementation import Implementation, check_implementation

THIN = 4  # matrix products of this many lines, one a segment, are slower than plain sums


def dynamic_projection(
    logits: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    segment: int | None = None,
    mask: Tensor | None = None,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor]:
    """Rows of keys and of values, before LN_G: averages of k and v under a softmax of `logits` over the tokens.

    logits: [B, N, H·R], head 0's rows first.  k, v: [B, H, N, D].  mask: [B, N], True on real tokens.
    Without `segment`: the rows [B, H, R, D] of the whole sequence. With it: the rows [B, H, S·R, D] of each finished
    segment; the tokens after the last one are left out. A padded token has weight 0; where all are padded, rows are 0.
    impl: "triton" for the kernels, "reference" or "chunked" for what stands here, or "auto".
    """
    check_implementation(impl)
    check_projection(logits, k, v, segment)
    check_mask("mask", mask, k, k.shape[-2])
    obstacle = why_not_here(k)
    if impl == "triton" and obstacle is not None:
        refuse(f"impl='triton' cannot run here: {obstacle}")
    if impl == "triton" or (impl == "auto" and obstacle is None and takes_kernels(k)):
        return project(logits, k, v, segment, mask)
    length = k.shape[2] if segment is None else segment
    whole = k.shape[2] // length * length  # tokens of finished segments
    size = (-1, length)
    weights = logits.unflatten(2, (k.shape[1], -1)).permute(0, 2, 3, 1)  # [B, H, R, N]
    weights = weights[..., :whole].contiguous().unflatten(3, size)  # [B, H, R, S, L]
    hidden = None if mask is None else ~mask[:, :whole].unflatten(1, size)[:, None, None]
    if hidden is not None:
        weights = weights.masked_fill(hidden, torch.finfo(weights.dtype).min)
    weights = weights.softmax(dim=4, dtype=torch.promote_types(weights.dtype, torch.float32)).to(k.dtype)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)  # where all tokens are padded, the lowest score made them uniform
    k_rows, v_rows = (averages(weights, t[:, :, :whole].unflatten(2, size), segment).flatten(2, 3) for t in (k, v))
    return k_rows, v_rows  # [B, H, S·R, D]


def averages(weights: Tensor, t: Tensor, segment: int | None) -> Tensor:
    """[B, H, S, R, D], from weights [B, H, R, S, L] and tokens [B, H, S, L, D]."""
    if segment is not None and 0 < weights.shape[2] <= THIN:
        return torch.stack([(w[..., None] * t).sum(dim=3) for w in weights.unbind(2)], dim=3)
    return weights.transpose(2, 3) @ t
