"""Long-short attention in plain PyTorch, block by block: linear memory, every device, exportable.

Queries are cut into blocks; the queries of a block share one tile of keys, gathered by index (`blocks.py` says which).
A few blocks are worked on at a time, and the backward pass computes their scores anew, so that no more than a chunk of
scores exists at any moment. The compiler and the exporter see all blocks in one step instead.

B batch, H heads, N queries, M keys, R rows, D head width, G blocks, C queries of a block, K keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.geometry import Causal, Geometry
from longshort.ops.blocks import Plan, make_plan
from longshort.ops.positions import RelativePositions

CHUNK = {"cpu": 1 << 21}  # how many scores to work on at a time: what the processor's cache holds
CHUNK_ELSEWHERE = 1 << 26  # on an accelerator: enough to keep it busy


def chunked(
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
    plan = make_plan(geometry, q.shape[2], k.shape[2], k_global.shape[2], start, mask, mask_global, q.device)
    q = q * scale
    content = position = near = distant = None
    if positions is not None and isinstance(geometry, Causal):
        content, position = (plan.blocks(q + b[:, None] * scale) for b in positions[:2])
        near, distant = positions.local[:, : geometry.span].flip(1), positions.rows[:, : k_global.shape[2]].flip(1)
    bias = None if bias is None else plan.tile_bias(bias)
    operands = Operands(plan.blocks(q), k, v, k_global, v_global, content, position, near, distant, bias)
    if torch.compiler.is_compiling():  # a loop over chunks would tie the graph to one length
        out = attend_at_once(plan, dropout, operands)
    else:
        out = _Chunks.apply(plan, dropout, *operands)
    return plan.tokens(out)


class Operands(NamedTuple):
    """The tensors of a call. Keys and values are tokens here, tiles in a chunk."""

    q: Tensor  # [B, H, G, C, D], scaled
    k: Tensor  # [B, H, M, D]; in a chunk [B, H, G, K, D]
    v: Tensor
    k_global: Tensor  # [B, H, R, D]
    v_global: Tensor
    content: Tensor | None  # q + content_bias, for relative positions
    position: Tensor | None  # q + position_bias
    near: Tensor | None  # [H, span, D], the table for local keys, the farthest first
    distant: Tensor | None  # [H, R, D], the table for rows, the farthest first
    bias: Tensor | None  # [H, C, K]

    def chunk(self, plan: Plan, a: int, b: int, rows: int) -> Operands:
        """What the blocks a to b need, with the first `rows` rows."""
        return self._replace(
            q=self.q[:, :, a:b],
            k=plan.tile(self.k, a, b),
            v=plan.tile(self.v, a, b),
            k_global=self.k_global[:, :, :rows],
            v_global=self.v_global[:, :, :rows],
            content=None if self.content is None else self.content[:, :, a:b],
            position=None if self.position is None else self.position[:, :, a:b],
            distant=None if self.distant is None else self.distant[:, self.distant.shape[1] - rows :],
        )

    def add_chunk_(self, d: Operands, plan: Plan, a: int, b: int, rows: int) -> None:
        """The adjoint of `chunk`: these are gradients, d those of a chunk of them."""
        for whole, part in ((self.q, d.q), (self.content, d.content), (self.position, d.position)):
            if whole is not None and part is not None:
                whole[:, :, a:b] = part
        for whole, part in ((self.k, d.k), (self.v, d.v)):
            whole.index_add_(2, plan.keys[a:b].flatten(), part.flatten(2, 3).to(whole.dtype))
        self.k_global[:, :, :rows] += d.k_global
        self.v_global[:, :, :rows] += d.v_global
        for whole, part in ((self.near, d.near), (self.bias, d.bias)):
            if whole is not None and part is not None:
                whole += part
        if self.distant is not None and d.distant is not None:
            self.distant[:, self.distant.shape[1] - rows :] += d.distant


def scores(plan: Plan, a: int, x: Operands) -> Tensor:
    """Scores [B, H, G, C, K + R] of a chunk that starts with block a, too low to count where a key is not seen.

    In float32 at least.
    """
    exact = torch.promote_types(x.q.dtype, torch.float32)
    local = ((x.q if x.content is None else x.content) @ x.k.mT).to(exact)
    far = times(x.q, x.k_global.mT).to(exact)
    if x.position is not None and x.near is not None and x.distant is not None:
        local += by_key(times(x.position, near_table(plan, x).mT), x.k.shape[3])
        by_segment(plan, far).add_(by_row(plan, a, times(by_segment(plan, x.q), far_table(plan, x).mT), far.shape[4]))
    if x.bias is not None:
        local += x.bias[:, None]
    local += penalty(plan.tiles_seen(a, a + x.q.shape[2]), local.dtype)
    rows_seen = plan.rows_seen(a, a + x.q.shape[2], far.shape[4])
    if rows_seen is not None:
        far[..., far.shape[4] - rows_seen.shape[4] :] += penalty(rows_seen, far.dtype)
    return torch.cat([local, far], dim=4)


def scores_backward(plan: Plan, a: int, x: Operands, local: Tensor, far: Tensor) -> Operands:
    """Gradients of all that `scores` reads, given those of the scores over tiles and over rows."""
    d_content, d_q = local @ x.k, times(far, x.k_global)
    d_k, d_k_global = local.mT @ (x.q if x.content is None else x.content), total(far, x.q, batch=True)
    d_position = d_near = d_distant = None
    if x.position is not None and x.near is not None and x.distant is not None:
        table = near_table(plan, x)
        products = local.new_zeros(*local.shape[:4], table.shape[1])
        by_key(products, local.shape[4]).copy_(local)
        d_position, d_near = (
            times(products, table),
            total(products, x.position)[:, -x.near.shape[1] - plan.block : -plan.block],
        )
        queries, table = by_segment(plan, x.q), far_table(plan, x)
        products = far.new_zeros(*queries.shape[:4], table.shape[1])
        by_row(plan, a, products, far.shape[4]).copy_(by_segment(plan, far))
        by_segment(plan, d_q).add_(times(products, table))
        d_distant = total(products, queries)[:, : x.distant.shape[1]]
    d_bias = None if x.bias is None else local.sum(dim=2).sum(dim=0)
    if x.content is None:
        d_q += d_content
    return Operands(d_q, d_k, x.v, d_k_global, x.v_global, d_content, d_position, d_near, d_distant, d_bias)


def times(q: Tensor, matrix: Tensor) -> Tensor:
    """Every line of the blocks [B, H, G, C, any] times a matrix [H, any, T] or [B, H, any, T] that all blocks share."""
    return (q.flatten(2, 3) @ matrix).unflatten(2, q.shape[2:4])


def total(a: Tensor, b: Tensor, batch: bool = False) -> Tensor:
    """Sum of aᵀ b over all blocks, and over the batch unless `batch`."""
    each = a.flatten(2, 3).mT @ b.flatten(2, 3)
    return each if batch else each.sum(dim=0)


# From "by distance" to "by key". Line i of a block has its key at distance d one place further right than line i - 1.
# Lines of t products, padded by as many places as there are lines, and read again as lines that are one place shorter,
# move line i by i places: a view. The same goes for segments, which move by `rank` places, and rows.


def skew(products: Tensor, step: int) -> Tensor:
    """[..., i, t] → [..., i, i·step + t], as a view, of lines padded by i·step or more."""
    lines, width = products.shape[-2], products.shape[-1] - step
    return products.flatten(-2)[..., : lines * width].unflatten(-1, (lines, width))


def near_table(plan: Plan, x: Operands) -> Tensor:
    """The table of local positions, padded for the skew; in front too where tiles reach further than the table."""
    assert x.near is not None
    return F.pad(x.near, (0, 0, max(0, x.k.shape[3] - plan.block + 1 - x.near.shape[1]), plan.block))


def by_key(products: Tensor, keys: int) -> Tensor:
    """Products [B, H, G, C, any] with the table of local positions as [B, H, G, C, K]."""
    return skew(products, 1)[..., -keys:]


def by_segment(plan: Plan, t: Tensor) -> Tensor:
    """[B, H, G, C, any] as [B, H, segment, segments, any]: queries at the same place of their segments together."""
    assert plan.causal is not None
    return t.flatten(2, 3).unflatten(2, (-1, plan.causal.segment)).transpose(2, 3)


def far_table(plan: Plan, x: Operands) -> Tensor:
    """The table of row positions, padded for the skew, and for the rows of the last segment, which no one here sees."""
    assert plan.causal is not None and x.distant is not None
    segments = x.q.shape[2] * (plan.block // plan.causal.segment)
    return F.pad(x.distant, (0, 0, 0, (segments + 1) * plan.causal.rank))


def by_row(plan: Plan, a: int, products: Tensor, rows: int) -> Tensor:
    """Products [B, H, segment, segments, rows + padding] with the table of row positions, by the number of the row."""
    assert plan.causal is not None
    moved = skew(products, plan.causal.rank)
    first = plan.first_row + rows - plan.causal.rows_before(plan.first + a * plan.block)
    return moved.narrow(-1, min(first, moved.shape[-1] - rows), rows)  # the minimum matters only where rows is 0


def penalty(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen; elsewhere low enough for a weight of 0, yet finite: a query that sees nothing must not make NaN."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min / 2)


def combine(weights: Tensor, v: Tensor, v_global: Tensor) -> Tensor:
    """Weights [B, H, G, C, K + R] over the values of tiles and rows."""
    local, far = weights.split([v.shape[3], v_global.shape[2]], dim=4)
    return local @ v + times(far, v_global)


def attend_at_once(plan: Plan, dropout: float, operands: Operands) -> Tensor:
    """All blocks in one step, one softmax over window and rows, differentiated by PyTorch: for compiler and export."""
    x = operands.chunk(plan, 0, operands.q.shape[2], operands.k_global.shape[2])
    return combine(F.dropout(scores(plan, 0, x).softmax(dim=4).to(x.v.dtype), dropout), x.v, x.v_global)


class _Chunks(torch.autograd.Function):
    """A few blocks at a time, forward and backward. Keeps its inputs and its output, never the scores.

    With W = softmax(S), O = W V and dO given: dV = Wᵀ dO, dW = dO Vᵀ, dS = W (dW - rowsum(dO O)).
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, dropout: float, *tensors: Any) -> Tensor:
        operands = Operands(*tensors)
        ctx.plan, ctx.dropout = plan, dropout
        ctx.seed = int(torch.randint(2**62, ())) if dropout else 0
        out = torch.empty_like(operands.q)
        for a, b, rows in chunks(plan, operands):
            x = operands.chunk(plan, a, b, rows)
            weights = scores(plan, a, x).softmax(dim=4).to(x.v.dtype)
            if dropout:
                weights *= kept(weights, dropout, ctx.seed + a)
            out[:, :, a:b] = combine(weights, x.v, x.v_global)
        ctx.save_for_backward(*tensors, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *tensors, out = ctx.saved_tensors
        operands = Operands(*tensors)
        with torch.autocast(out.device.type, enabled=False):
            totals = backward_in_chunks(ctx.plan, ctx.dropout, ctx.seed, operands, out, *grads)
        return None, None, *(None if t is None else t.to(out.dtype) for t in totals)


def backward_in_chunks(
    plan: Plan, dropout: float, seed: int, operands: Operands, out: Tensor, d_out: Tensor
) -> Operands:
    """Gradients of the operands, in float32 at least: a key or a row gets a part of its own from every chunk."""
    exact = torch.promote_types(out.dtype, torch.float32)
    # One head's keys come with strides for which PyTorch 2.11's deterministic sums at indices are wrong on a GPU
    layout = torch.contiguous_format if out.shape[1] == 1 else torch.preserve_format
    totals = Operands._make(
        None if t is None else torch.zeros_like(t, dtype=exact, memory_format=layout) for t in operands
    )
    mean = (d_out * out).sum(dim=4, keepdim=True, dtype=exact)
    for a, b, rows in chunks(plan, operands):
        x, d = operands.chunk(plan, a, b, rows), d_out[:, :, a:b].contiguous()
        weights = scores(plan, a, x).softmax(dim=4).to(d.dtype)
        factors = kept(weights, dropout, seed + a) if dropout else None
        sizes = [x.v.shape[3], rows]
        d_v, d_v_global = values_backward(weights if factors is None else weights * factors, d, sizes)
        d_local, d_far = d @ x.v.mT, times(d, x.v_global.mT)
        if factors is not None:
            for part, factor in zip((d_local, d_far), factors.split(sizes, dim=4), strict=True):
                part *= factor
        for part, weight in zip((d_local, d_far), weights.split(sizes, dim=4), strict=True):
            part.sub_(mean[:, :, a:b]).mul_(weight)
        d_x = scores_backward(plan, a, x, d_local, d_far)
        totals.add_chunk_(d_x._replace(v=d_v, v_global=d_v_global), plan, a, b, rows)
    return totals


def values_backward(weights: Tensor, d: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Gradients of the values of tiles and of rows."""
    local, far = weights.split(sizes, dim=4)
    return local.mT @ d, total(far, d, batch=True)


def chunks(plan: Plan, x: Operands) -> Iterator[tuple[int, int, int]]:
    """Runs of blocks a to b, with the number of rows that any of their queries sees."""
    batch, heads, blocks, block, _ = x.q.shape
    per_block = batch * heads * block * (plan.keys.shape[1] + x.k_global.shape[2])
    step = max(1, CHUNK.get(x.q.device.type, CHUNK_ELSEWHERE) // max(per_block, 1))
    for a in range(0, blocks, step):
        b = min(a + step, blocks)
        yield a, b, plan.rows_until(b, x.k_global.shape[2])


def kept(weights: Tensor, dropout: float, seed: int) -> Tensor:
    """Dropout's factors, 0 or 1 / (1 - dropout): the same for a seed, so that the backward pass finds them again."""
    generator = torch.Generator(weights.device).manual_seed(seed)
    keep = torch.rand(weights.shape, generator=generator, device=weights.device) >= dropout
    return keep.to(weights.dtype) / (1 - dropout)
