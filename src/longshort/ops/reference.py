"""Long-short attention, dense: the definition. O(N²): for tests, small inputs and single queries.

B batch, H heads, N queries, M keys (the queries are the last N of the M tokens), R rows, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.geometry import Causal, Geometry, Tiles
from longshort.ops.positions import RelativePositions


def reference(
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
    weights = weights_of(
        q,
        k,
        k_global,
        geometry=geometry,
        mask=mask,
        mask_global=mask_global,
        positions=positions,
        bias=bias,
        start=start,
        scale=scale,
    )
    values = torch.cat([v, v_global], dim=2).to(weights.dtype)  # [B, H, M + R, D]
    return (F.dropout(weights, dropout) @ values).to(v.dtype)


def weights_of(
    q: Tensor,
    k: Tensor,
    k_global: Tensor,
    *,
    geometry: Geometry,
    mask: Tensor | None,
    mask_global: Tensor | None,
    positions: RelativePositions | None,
    bias: Tensor | None,
    start: int,
    scale: float,
) -> Tensor:
    """The softmax of every query over keys and rows, [B, H, N, M + R]."""
    exact = torch.promote_types(q.dtype, torch.float32)
    q, k, k_global = q.to(exact) * scale, k.to(exact), k_global.to(exact)
    end, rows = start + q.shape[2], k_global.shape[2]
    i = torch.arange(start, end, device=q.device)[:, None]  # [N, 1]
    j = torch.arange(end - k.shape[2], end, device=q.device)  # [M]
    row = torch.arange(rows, device=q.device)  # [R]
    if isinstance(geometry, Causal):
        row = row + geometry.rows_before(end) - rows  # a bounded memory has dropped the first ones

    local, far = q @ k.mT, q @ k_global.mT  # [B, H, N, M], [B, H, N, R]
    if positions is not None and isinstance(geometry, Causal):
        u, p, near, distant = (t.to(exact) for t in positions)
        local = (q + u[:, None] * scale) @ k.mT + at_distance(q + p[:, None] * scale, near, i - j)
        far = far + at_distance(q, distant, geometry.rows_before(i) - 1 - row)
    if bias is not None and isinstance(geometry, Tiles):
        local = local + at_offset(bias.to(exact), geometry, i, j)

    visible = torch.cat([geometry.sees(i, j), geometry.sees_row(i, row)], dim=1)  # [N, M + R]
    if mask is not None or mask_global is not None:
        visible = visible & present(mask, mask_global, q.shape[0], k.shape[2], rows, q.device)[:, None, None]
    scores = torch.cat([local, far], dim=3).masked_fill(~visible, torch.finfo(exact).min)
    return scores.softmax(dim=3).masked_fill(~visible, 0.0)  # where nothing is visible, min made them uniform


def at_distance(q: Tensor, table: Tensor, distance: Tensor) -> Tensor:
    """q·table[distance], [B, H, N, keys], from a table [H, distances, D]; any value where the distance is not in it."""
    products = q @ table.mT
    index = distance.clamp(0, max(table.shape[1] - 1, 0))
    return products.gather(3, index.expand(*q.shape[:2], *index.shape))


def at_offset(bias: Tensor, geometry: Tiles, i: Tensor, j: Tensor) -> Tensor:
    """The bias [H, N, M] of every offset (dy, dx) from key to query; any value where the offset is not in the table."""
    dy, dx = i // geometry.width - j // geometry.width, i % geometry.width - j % geometry.width
    middle = geometry.offsets // 2
    dy, dx = ((d + middle) % geometry.offsets for d in (dy, dx))  # PyTorch 2.11 compiles no clamp here, on a GPU
    return bias[:, dy, dx]


def present(
    mask: Tensor | None, mask_global: Tensor | None, batch: int, keys: int, rows: int, device: torch.device
) -> Tensor:
    """[B, M + R], True on the keys and the rows that are not padding."""
    parts = [
        torch.ones(batch, size, dtype=torch.bool, device=device) if m is None else m
        for m, size in ((mask, keys), (mask_global, rows))
    ]
    return torch.cat(parts, dim=1)
