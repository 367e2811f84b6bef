"""The kernels of sequences and grids as a PyTorch operator with gradients.

B batch, H heads, N queries, R rows, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longshort.geometry import Segments
from longshort.ops.triton import tiles as kernels
from longshort.ops.triton.launch import (
    SPLIT,
    bytes_of,
    cdiv,
    dense,
    fitting,
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

ALIGNED = 16  # entries to which lines of a bias are filled up
ENTRIES = 128  # of a bias, that a program handles


def block_sides(window: int, grid: bool, tile: int) -> tuple[int, int]:
    """Tokens along both axes of a block: whole windows, of the few sizes tried that which fills tiles best."""
    reach = Segments(window).reach

    def cost(sides: tuple[int, int]) -> float:
        y, x = sides
        keys = (y + 2 * reach) * (x + 2 * reach if grid else 1)
        return -(-y * x // tile) * tile * keys / (y * x)

    if grid:
        least = max(1, round(tile**0.5) // window)
        tried = [(window * a, window * b) for a in (least, least + 1) for b in (least, least + 1, least + 2)]
    else:
        tried = [(window * max(1, tile // window) * m, 1) for m in (1, 2, 3, 4)]
    best = tried[0]
    for sides in tried:  # a loop that the compiler follows, as it does not min with a key
        if cost(sides) < cost(best):
            best = sides
    return best


def geometry_of(window: int, height: int, width: int, tile: int) -> dict[str, int]:
    """The constants of a geometry, along both axes. A sequence has width 1."""
    if window == 0:  # rows alone
        return dict(WY=tile, WX=1, RY=0, RX=0, SY=tile, SX=1)
    reach, grid = Segments(window).reach, width > 1
    wy, wx = (min(window, height), min(window, width)) if grid else (window, 1)
    sy, sx = block_sides(window, grid, tile)
    if grid and window >= min(height, width):  # one window over all of an axis
        sy, sx = (sy if window < height else wy), (sx if window < width else wx)
    return dict(
        WY=wy, WX=wx, RY=reach if wy < height or not grid else 0, RX=reach if wx < width and grid else 0, SY=sy, SX=sx
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, k_rows: Tensor, v_rows: Tensor,
    mask: Tensor | None, mask_rows: Tensor | None, bias: Tensor | None, seed: Tensor | None,
    window: int, height: int, width: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [B, H, N, D], and the logarithm to base 2 of the sums of weights [B, H, N].

    bias: [H, offsets, offsets].
    """
    q, k, v, k_rows, v_rows = (dense(t) for t in (q, k, v, k_rows, v_rows))
    batch, heads, _, features = q.shape
    out, lse = outputs(q)
    tile = tile_size(q)
    g = geometry_of(window, height, width, tile)
    blocks = cdiv(height, g["SY"]) * cdiv(width, g["SX"])
    rows = k_rows.shape[2]
    table = q if bias is None else over_queries(bias, g)
    kernels.forward[(cdiv(g["SY"] * g["SX"], tile) * blocks * batch * heads,)](
        q, k, v, k_rows, v_rows, bytes_of(mask, q), bytes_of(mask_rows, q), table, out, lse,
        q if seed is None else seed, *strides(q, k, v, k_rows, v_rows, out), height, width, rows, heads, scale, dropout,
        MASK=mask is not None, MASK_ROWS=mask_rows is not None, BIAS=bias is not None, DROPOUT=dropout > 0,
        LOCAL=window > 0, D=features, W=padded(features), T=tile, K=keys_tile(g, tile), KR=fitting(max(rows, 1), tile),
        num_warps=4, num_stages=2, **g,
    )  # fmt: skip
    return out, lse


def keys_tile(g: dict[str, int], most: int) -> int:
    return fitting((g["SY"] + 2 * g["RY"]) * (g["SX"] + 2 * g["RX"]), most)


def attend_backward(
    d_out: Tensor, out: Tensor, lse: Tensor,
    q: Tensor, k: Tensor, v: Tensor, k_rows: Tensor, v_rows: Tensor,
    mask: Tensor | None, mask_rows: Tensor | None, bias: Tensor | None, seed: Tensor | None,
    window: int, height: int, width: int, scale: float, dropout: float,
    into: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v, k_rows, v_rows and, where there is one, of the bias.

    into: memory for that of q.
    """
    q, k, v, k_rows, v_rows, d_out = (dense(t) for t in (q, k, v, k_rows, v_rows, d_out))
    batch, heads, _, features = q.shape
    d_q, delta = torch.empty_like(q) if into is None else into, torch.empty_like(lse)
    tile, rows = tile_size(q), k_rows.shape[2]
    g = geometry_of(window, height, width, tile)
    blocks = cdiv(height, g["SY"]) * cdiv(width, g["SX"])
    pad, bits = bytes_of(mask, q), bytes_of(mask_rows, q)
    table = table_keys = q
    if bias is not None:
        table, table_keys = over_queries(bias, g), over_keys(bias, g)
    seed = q if seed is None else seed
    common = dict(DROPOUT=dropout > 0, D=features, W=padded(features), T=tile, num_warps=4)
    local = dict(MASK=mask is not None, K=keys_tile(g, tile), **g, **common)
    sizes = (height, width, rows, heads, scale, dropout)
    kernels.backward_queries[(cdiv(g["SY"] * g["SX"], tile) * blocks * batch * heads,)](
        q, k, v, k_rows, v_rows, pad, bits, table, out, lse, seed, d_out, d_q, delta,
        *strides(q, k, v, k_rows, v_rows, out, d_out, d_q), *sizes,
        MASK_ROWS=mask_rows is not None, BIAS=bias is not None, LOCAL=window > 0,
        KR=fitting(max(rows, 1), tile), **local, num_stages=3,
    )  # fmt: skip
    d_k, d_v = torch.empty_like(k), torch.empty_like(v)
    if window == 0:
        d_k.zero_(), d_v.zero_()
    else:
        backward_keys(
            q, k, v, pad, table_keys, lse, delta, seed, d_out, d_k, d_v, sizes, {**local, "BIAS": bias is not None}
        )
    d_rows = rows_backward(
        q, k_rows, v_rows, bits, q, [0, 0], lse, delta, seed, d_out, 0, 0, scale, dropout,
        K=fitting(max(rows, 1), tile), CAUSAL=False, SEGMENT=1, RANK=1, MASK_ROWS=mask_rows is not None,
        POSITIONS=False, **common,
    )  # fmt: skip
    grads = [d_q, d_k, d_v, *d_rows]
    if bias is not None:
        programs = cdiv(table.shape[1], tile) * cdiv(table.shape[2], local["K"]) * heads
        workers = max(1, min(cdiv(SPLIT * processors(q), programs), batch * blocks))
        d_bias = torch.empty(workers, *table.shape, dtype=torch.float32, device=q.device)
        kernels.backward_bias[(programs * workers,)](
            q, k, v, pad, table, lse, delta, seed, d_out, d_bias,
            *strides(q, k, v, d_out), *sizes, batch * blocks, workers, **local, num_stages=3,
        )  # fmt: skip
        grads.append(gathered_back(d_bias.sum(dim=0), bias.shape[1], g).to(bias.dtype))
    return grads


def backward_keys(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor, table: Tensor, lse: Tensor, delta: Tensor, seed: Tensor,
    d_out: Tensor, d_k: Tensor, d_v: Tensor, sizes: tuple[Any, ...], constants: dict[str, Any],
) -> None:  # fmt: skip
    g, most = constants, constants["T"]
    sides = [(g["SY"], g["RY"], g["WY"], sizes[0]), (g["SX"], g["RX"], g["WX"], sizes[1])]
    blocks = queries = 1
    for side, reach, window, length in sides:
        blocks *= cdiv(length + (side - reach if reach else 0), side)
        queries *= side + cdiv(2 * reach, window) * window
    size = g["SY"] * g["SX"]
    constants = {**constants, "K": fitting(size, most), "T": fitting(queries, most)}
    kernels.backward_keys[(cdiv(size, constants["K"]) * blocks * q.shape[0] * q.shape[1],)](
        q, k, v, pad, table, lse, delta, seed, d_out, d_k, d_v, *strides(q, k, v, d_out, d_k, d_v), *sizes,
        **constants, num_stages=2, **registers(168, q.shape[3], q),
    )  # fmt: skip


tiles_attention = Operator(
    "tiles",
    attend,
    attend_backward,
    fake=lambda q, *_: outputs(q),
    fake_backward=lambda d_out, out, lse, *inputs: like_inputs(*inputs[:5], inputs[7]),
    tensors=[0, 1, 2, 3, 4, 7],
)


def over_queries(bias: Tensor, g: dict[str, int]) -> Tensor:
    """The bias between the queries of a block and the keys it sees, [H, queries, keys]; lines are filled up."""
    keys = [(g["SY"] + 2 * g["RY"], -g["RY"]), (g["SX"] + 2 * g["RX"], -g["RX"])]
    return spread(bias, [(g["SY"], 0), (g["SX"], 0)], keys, sign=1)


def over_keys(bias: Tensor, g: dict[str, int]) -> Tensor:
    """The bias between the keys of a block, which starts `reach` after a window does, and the queries that see it."""
    sides = [(g["SY"], g["RY"], g["WY"]), (g["SX"], g["RX"], g["WX"])]
    return spread(bias, [(s, 0) for s, _, _ in sides], [(s + cdiv(2 * r, w) * w, -r) for s, r, w in sides], sign=-1)


def spread(bias: Tensor, lines: list[tuple[int, int]], columns: list[tuple[int, int]], sign: int) -> Tensor:
    """[H, lines, columns] with the entry of the bias that belongs to each. Given: length and start along both axes."""
    (ly, ly0), (lx, lx0), (cy, cy0), (cx, cx0) = *lines, *columns
    out = bias.new_empty(bias.shape[0], ly * lx, cdiv(cy * cx, ALIGNED) * ALIGNED)
    kernels.spread_bias[(cdiv(out.numel(), ENTRIES),)](
        bias.contiguous(), out, out.numel(), ly0 - cy0, lx0 - cx0,
        LY=ly, LX=lx, CY=cy, CX=cx, LINE=out.shape[2], OFFSETS=bias.shape[1], SIGN=sign, T=ENTRIES,
    )  # fmt: skip
    return out


def gathered_back(d_bias: Tensor, offsets: int, g: dict[str, int]) -> Tensor:
    """The gradient of the bias [H, offsets, offsets] from that of over_queries."""
    found = d_bias.new_empty(d_bias.shape[0], offsets, offsets)
    kernels.sum_bias[(cdiv(found.numel(), ENTRIES),)](
        d_bias, found, found.numel(), SY=g["SY"], SX=g["SX"], RY=g["RY"], RX=g["RX"],
        LINE=d_bias.shape[2], OFFSETS=offsets, T=ENTRIES,
    )  # fmt: skip
    return found
