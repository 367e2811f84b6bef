"""The causal kernels as a PyTorch operator with gradients.

B batch, H heads, N queries, M keys, R rows, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longshort.ops.triton import causal as kernels
from longshort.ops.triton.launch import (
    SPLIT,
    bytes_of,
    cdiv,
    dense,
    like_inputs,
    outputs,
    padded,
    processors,
    registers,
    rows_backward,
    strides,
    tile_size,
)
from longshort.ops.triton.operator import Operator

WORKSPACE = 1 << 27  # gradients by distance that exist at a time, unless one tile of queries has more


class Tables:
    """Positions as the kernels take them: queries plus the two biases, tables, strides; or pointers not followed."""

    def __init__(self, q: Tensor, tables: list[Tensor | None]) -> None:
        content_bias, position_bias, near, far = tables
        self.given = near is not None
        self.content = self.position = self.near = self.far = q
        self.strides = [*strides(q), 0, 0, 0, 0]
        if content_bias is not None and position_bias is not None and near is not None and far is not None:
            batch, heads, queries, width = q.shape
            made = [q.new_empty(batch, queries, heads, width) for _ in range(2)]
            kernels.add_biases[(cdiv(queries, 32) * batch * heads,)](
                q, content_bias.contiguous(), position_bias.contiguous(), *made,
                *strides(q), queries, heads, D=width, W=padded(width), T=32,
            )  # fmt: skip
            self.content, self.position = (t.transpose(1, 2) for t in made)
            self.near, self.far = dense(near), dense(far)
            self.strides = strides(self.content, self.near, self.far)


def attend(
    q: Tensor, k: Tensor, v: Tensor, k_rows: Tensor, v_rows: Tensor,
    mask: Tensor | None, mask_rows: Tensor | None,
    content_bias: Tensor | None, position_bias: Tensor | None, near: Tensor | None, far: Tensor | None,
    seed: Tensor | None, window: int, segment: int, rank: int, sliding: bool, start: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [B, H, N, D], and the logarithm to base 2 of the sums of weights [B, H, N]."""
    q, k, v, k_rows, v_rows = (dense(t) for t in (q, k, v, k_rows, v_rows))
    batch, heads, queries, width = q.shape
    out, lse = outputs(q)
    rows, span, tile = k_rows.shape[2], window if sliding else 2 * window, tile_size(q)
    tables = Tables(q, [content_bias, position_bias, near, far])
    kernels.forward[(cdiv(queries, tile) * batch * heads,)](
        q, k, v, k_rows, v_rows, bytes_of(mask, q), bytes_of(mask_rows, q),
        tables.content, tables.position, tables.near, tables.far, out, lse, q if seed is None else seed,
        *strides(q, k, v, k_rows, v_rows, out), *tables.strides,
        queries, k.shape[2], rows, start, (start + queries) // segment * rank - rows, heads, scale, dropout,
        WINDOW=window, SPAN=span, SEGMENT=segment, RANK=rank, SLIDING=sliding,
        MASK=mask is not None, MASK_ROWS=mask_rows is not None, POSITIONS=tables.given, DROPOUT=dropout > 0,
        D=width, W=padded(width), T=tile, num_warps=4, num_stages=2,
        **({} if tables.given else registers(128, width, q)),
    )  # fmt: skip
    return out, lse


def attend_backward(
    d_out: Tensor, out: Tensor, lse: Tensor,
    q: Tensor, k: Tensor, v: Tensor, k_rows: Tensor, v_rows: Tensor,
    mask: Tensor | None, mask_rows: Tensor | None,
    content_bias: Tensor | None, position_bias: Tensor | None, near: Tensor | None, far: Tensor | None,
    seed: Tensor | None, window: int, segment: int, rank: int, sliding: bool, start: int, scale: float, dropout: float,
    into: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v, k_rows, v_rows and, where there are positions, of their four tables.

    into: memory for that of q.
    """
    q, k, v, k_rows, v_rows, d_out = (dense(t) for t in (q, k, v, k_rows, v_rows, d_out))
    batch, heads, queries, width = q.shape
    keys, rows, span, tile = k.shape[2], k_rows.shape[2], window if sliding else 2 * window, tile_size(q)
    first_row = (start + queries) // segment * rank - rows
    tables = Tables(q, [content_bias, position_bias, near, far])
    d_q, delta = torch.empty_like(q) if into is None else into, torch.empty_like(lse)
    pad, bits, seed = bytes_of(mask, q), bytes_of(mask_rows, q), q if seed is None else seed
    lengths = (queries, keys, rows, start, first_row, heads, batch * heads, scale, dropout)
    launch = dict(POSITIONS=tables.given, DROPOUT=dropout > 0, D=width, W=padded(width), T=tile, num_warps=4)
    fewer = {} if tables.given else registers(168, width, q)
    reach = dict(WINDOW=window, SPAN=span, SLIDING=sliding, MASK=mask is not None)
    steps = dict(SEGMENT=segment, RANK=rank, MASK_ROWS=mask_rows is not None)

    def queries_backward(
        tile0: int, tiles: int, d_near: Tensor, d_far: Tensor, d_biases: Tensor, near_blocks: int, far_blocks: int
    ) -> None:
        kernels.backward_queries[(tiles * batch * heads,)](
            q, k, v, k_rows, v_rows, pad, bits, tables.content, tables.position, tables.near, tables.far,
            out, lse, seed, d_out, d_q, delta, d_near, d_far, d_biases,
            *strides(q, k, v, k_rows, v_rows, out), *tables.strides, *strides(d_out, d_q), *lengths,
            tile0, tiles, near_blocks, far_blocks,
            **reach, **steps, **launch, num_stages=1 if tables.given else 2, **fewer,
        )  # fmt: skip

    d_tables: list[Tensor] = []
    if content_bias is None or position_bias is None or near is None or far is None:
        queries_backward(0, cdiv(queries, tile), q, q, q, 0, 0)
    else:
        d_tables = table_gradients(q, position_bias, near, far, queries_backward, span, rows, segment, rank, start)
    d_k, d_v = torch.empty_like(k), torch.empty_like(v)
    tiles = cdiv(keys, tile)
    kernels.backward_keys[(tiles * batch * heads,)](
        tables.content, k, v, pad, tables.position, tables.near, lse, delta, seed, d_out, d_k, d_v,
        *strides(tables.content, k, v), *tables.strides[3:5], *strides(d_out, d_k, d_v),
        queries, keys, start, heads, scale, dropout, **reach, **launch, num_stages=2, **fewer,
    )  # fmt: skip
    d_rows = rows_backward(
        q, k_rows, v_rows, bits, tables.far, tables.strides[5:], lse, delta, seed, d_out,
        start, first_row, scale, dropout, K=tile, CAUSAL=True, **steps, **launch,
    )  # fmt: skip
    return [d_q, d_k, d_v, *d_rows, *((d * scale).to(q.dtype) for d in d_tables)]


def table_gradients(
    q: Tensor, position_bias: Tensor, near: Tensor, far: Tensor, queries_backward: Callable[..., None],
    span: int, rows: int, segment: int, rank: int, start: int,
) -> list[Tensor]:  # fmt: skip
    """Of content_bias, position_bias, near and far. Gradients of scores by distance come a few tiles at a time."""
    batch, heads, queries, width = q.shape
    tile = tile_size(q)
    tiles, blocks = cdiv(queries, tile), [cdiv(n, tile) for n in (span, rows)]
    size = batch * heads * tile**2
    step = max(1, WORKSPACE // max(1, size * sum(blocks)))
    step = cdiv(tiles, cdiv(tiles, step))
    memory = q.new_empty(size * step * sum(blocks))
    d_biases = q.new_empty(tiles, batch, heads, width, dtype=torch.float32)
    splits = [max(1, min(SPLIT * processors(q) // (heads * max(n, 1)), batch * step)) for n in blocks]
    sizes = [(s, heads, n * tile) for s, n in zip(splits, blocks, strict=True)]
    d_tables = [q.new_zeros(*shape, width, dtype=torch.float32) for shape in sizes]
    sums = q.new_zeros(sizes[0], dtype=torch.float32)  # of the gradients of the scores of a line of `near`
    for tile0 in range(0, tiles, step):
        count = min(step, tiles - tile0)
        seen = (start + min((tile0 + count) * tile, queries) - 1) // segment * rank
        ends = blocks[0], cdiv(max(seen - (start + queries) // segment * rank + rows, 0), tile)
        by_distance = memory.split([size * count * ends[0], memory.numel() - size * count * ends[0]])
        queries_backward(tile0, count, *by_distance, d_biases, *ends)
        for d_scores, end, d_table in zip(by_distance, ends, d_tables, strict=True):
            if end:
                kernels.backward_tables[(end * heads * len(d_table),)](
                    q, d_scores, d_table, sums, *strides(q), queries, batch, heads, tile0, count, end,
                    d_table.shape[2], len(d_table), SUMS=d_table is d_tables[0],
                    D=width, W=padded(width), T=tile, num_warps=4, num_stages=3,
                )  # fmt: skip
    d_near, d_far = (fitted(d.sum(dim=0), t.shape[1]) for d, t in zip(d_tables, (near, far), strict=True))
    by_line = fitted(sums.sum(dim=0)[..., None], near.shape[1])
    d_position = (by_line * near).sum(dim=1)
    return [d_biases.sum(dim=(0, 1)) - d_position, d_position, d_near + by_line * position_bias[:, None], d_far]


def fitted(table: Tensor, length: int) -> Tensor:
    """A table [H, any, D] cut to a length, or filled up with zeros."""
    return torch.nn.functional.pad(table, (0, 0, 0, length - table.shape[1]))


causal_attention = Operator(
    "causal",
    attend,
    attend_backward,
    fake=lambda q, *_: outputs(q),
    fake_backward=lambda d_out, out, lse, *inputs: like_inputs(*inputs[:5], *inputs[7:11]),
    tensors=[0, 1, 2, 3, 4, 7, 8, 9, 10],
)
