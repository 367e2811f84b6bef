"""The causal kernels as a PyTorch operator with gradients.

B batch, H heads, N queries, M keys, R rows, D head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longshort.ops.triton import causal as kernels
from longshort.ops.triton.launch import (
    bytes_of,
    cdiv,
    dense,
    like_inputs,
    outputs,
    padded,
    registers,
    rows_backward,
    strides,
    tile_size,
)
from longshort.ops.triton.operator import Operator

WORKSPACE = 1 << 27  # gradients by distance that exist at a time, unless one tile of queries has more
ONES = 8  # features beside the position queries whose products are sums; so many that lines stay aligned


class Tables:
    """Positions as the kernels take them: queries plus the two biases, tables, strides; or pointers not followed.

    beside: for the backward pass, queries plus position_bias, beside ONES features that are 1.
    """

    def __init__(self, q: Tensor, tables: list[Tensor | None], ones: int = 0) -> None:
        content_bias, position_bias, near, far = tables
        self.given = near is not None
        self.content = self.position = self.beside = self.near = self.far = q
        self.strides = [*strides(q), 0, 0, 0, 0]
        if content_bias is not None and position_bias is not None and near is not None and far is not None:
            batch, heads, queries, width = q.shape
            made = [q.new_empty(batch, queries, heads, width) for _ in range(2)]
            self.beside = q.new_empty(batch, heads, queries, width + ones) if ones else q
            kernels.add_biases[(cdiv(queries, 32) * batch * heads,)](
                q, content_bias.contiguous(), position_bias.contiguous(), *made, self.beside,
                *strides(q), queries, heads, D=width, W=padded(width + ones), T=32, ONES=ones,
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
    tables = Tables(q, [content_bias, position_bias, near, far], ONES)
    d_k, d_v, delta = (torch.empty_like(t) for t in (k, v, lse))
    d_q = torch.empty_like(q) if into is None else into
    pad, bits, seed = bytes_of(mask, q), bytes_of(mask_rows, q), q if seed is None else seed
    lengths = (queries, keys, rows, start, first_row, heads, batch * heads, scale, dropout)
    launch = dict(POSITIONS=tables.given, DROPOUT=dropout > 0, D=width, W=padded(width), T=tile, num_warps=4)
    fewer = {} if tables.given else registers(168, width, q)
    reach = dict(WINDOW=window, SPAN=span, SLIDING=sliding, MASK=mask is not None)
    steps = dict(SEGMENT=segment, RANK=rank, MASK_ROWS=mask_rows is not None)

    def queries_backward(tile0: int, tiles: int, d_near: Tensor, d_far: Tensor, d_biases: Tensor) -> None:
        kernels.backward_queries[(tiles * batch * heads,)](
            q, k, v, k_rows, v_rows, pad, bits, tables.content, tables.position, tables.near, tables.far,
            out, lse, seed, d_out, d_q, delta, d_near, d_far, d_biases,
            *strides(q, k, v, k_rows, v_rows, out), *tables.strides, *strides(d_out, d_q), *lengths,
            tile0, tiles, d_near.shape[-1] // tile, d_far.shape[-1] // tile,
            **reach, **steps, **launch, num_stages=1 if tables.given else 2, **fewer,
        )  # fmt: skip

    d_tables: list[Tensor] = []
    if content_bias is None or position_bias is None or near is None or far is None:
        queries_backward(0, cdiv(queries, tile), q, q, q)
    else:
        columns = [cdiv(n, tile) * tile for n in (span, rows)]
        d_tables = table_gradients(
            q, tables.beside, near, far, queries_backward, columns, segment, rank, start, first_row
        )
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
    q: Tensor, beside: Tensor, near: Tensor, far: Tensor, queries_backward: Callable[..., None],
    columns: list[int], segment: int, rank: int, start: int, first_row: int,
) -> list[Tensor]:  # fmt: skip
    """Of content_bias, position_bias, near and far. Gradients of scores by distance come a few tiles at a time.

    They are then products: of what the kernel wrote, a matrix of distances a query, with the queries.
    """
    batch, heads, queries, width = q.shape
    tile = tile_size(q)
    step = max(1, WORKSPACE // max(1, batch * heads * tile * sum(columns)))
    step = cdiv(cdiv(queries, tile), cdiv(cdiv(queries, tile), step))
    memory = q.new_empty(batch * heads * step * tile * sum(columns))
    sizes = zip(columns, (width + ONES, width), strict=True)
    d_biases = torch.empty(cdiv(queries, tile), batch, heads, width, dtype=torch.float32, device=q.device)
    totals = [torch.zeros(heads, n, w, dtype=torch.float32, device=q.device) for n, w in sizes]
    for a in range(0, queries, step * tile):
        b = min(a + step * tile, queries)
        tiles = cdiv(b - a, tile)
        ends = [columns[0], cdiv(max((start + b - 1) // segment * rank - first_row, 0), tile) * tile]
        parts = memory[: batch * heads * tiles * tile * sum(ends)].split(
            [batch * heads * tiles * tile * n for n in ends]
        )
        by_distance = [p.view(batch, heads, tiles * tile, n) for p, n in zip(parts, ends, strict=True)]
        queries_backward(a // tile, tiles, *by_distance, d_biases)
        for total, d, of in zip(totals, by_distance, (beside, q), strict=True):
            found = (d[:, :, : b - a].mT @ of[:, :, a:b]).sum(dim=0, dtype=torch.float32)
            total[:, : found.shape[1]] += found
    (d_near, numbers), d_far = totals[0].split([width, ONES], dim=2), totals[1]
    d_near, d_far = (fitted(d, t.shape[1]) for d, t in ((d_near, near), (d_far, far)))
    d_position = (numbers[..., :1] * fitted(near, columns[0])).sum(dim=1)
    return [d_biases.sum(dim=(0, 1)) - d_position, d_position, d_near, d_far]


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
