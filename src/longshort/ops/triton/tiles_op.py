"""The kernels of sequences and grids as a PyTorch operator with gradients.

B batch, H heads, N queries, R rows, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from longshort.geometry import Segments, Tiles
from longshort.ops.triton import tiles as kernels
from longshort.ops.triton.launch import (
    SPLIT,
    bytes_of,
    dense,
    fitting,
    like_inputs,
    outputs,
    padded,
    processors,
    rows_backward,
    strides,
    tile_size,
)
from longshort.ops.triton.operator import Operator

ALIGNED = 16  # entries to which lines of a bias are filled up


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
    mask: Tensor | None, mask_rows: Tensor | None, bias: Tensor | None, bias_keys: Tensor | None, seed: Tensor | None,
    window: int, height: int, width: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [B, H, N, D], and the logarithm to base 2 of the sums of weights [B, H, N].

    bias: [H, queries of a block, its keys] and bias_keys: [H, keys of a block, its queries], as `bias_of_block` and
    `bias_of_keys` make them. The gradient of the second is in that of the first.
    """
    q, k, v, k_rows, v_rows = (dense(t) for t in (q, k, v, k_rows, v_rows))
    batch, heads, _, features = q.shape
    out, lse = outputs(q)
    tile = tile_size(q)
    g = geometry_of(window, height, width, tile)
    blocks = triton.cdiv(height, g["SY"]) * triton.cdiv(width, g["SX"])
    rows = k_rows.shape[2]
    kernels.forward[(triton.cdiv(g["SY"] * g["SX"], tile) * blocks * batch * heads,)](
        q, k, v, k_rows, v_rows, bytes_of(mask, q), bytes_of(mask_rows, q), q if bias is None else bias, out, lse,
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
    mask: Tensor | None, mask_rows: Tensor | None, bias: Tensor | None, bias_keys: Tensor | None, seed: Tensor | None,
    window: int, height: int, width: int, scale: float, dropout: float,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v, k_rows, v_rows and, where there is one, of the bias."""
    q, k, v, k_rows, v_rows, d_out = (dense(t) for t in (q, k, v, k_rows, v_rows, d_out))
    batch, heads, _, features = q.shape
    d_q, d_k, d_v = (torch.empty_like(t) for t in (q, k, v))
    delta = torch.empty_like(lse)
    tile, rows = tile_size(q), k_rows.shape[2]
    g = geometry_of(window, height, width, tile)
    blocks = triton.cdiv(height, g["SY"]) * triton.cdiv(width, g["SX"])
    pad, bits = bytes_of(mask, q), bytes_of(mask_rows, q)
    table, table_keys = q if bias is None else bias, q if bias_keys is None else bias_keys
    seed = q if seed is None else seed
    common = dict(DROPOUT=dropout > 0, D=features, W=padded(features), T=tile, num_warps=4, num_stages=2)
    local = dict(MASK=mask is not None, K=keys_tile(g, tile), **g, **common)
    sizes = (height, width, rows, heads, scale, dropout)
    kernels.backward_queries[(triton.cdiv(g["SY"] * g["SX"], tile) * blocks * batch * heads,)](
        q, k, v, k_rows, v_rows, pad, bits, table, out, lse, seed, d_out, d_q, delta,
        *strides(q, k, v, k_rows, v_rows, out, d_out, d_q), *sizes,
        MASK_ROWS=mask_rows is not None, BIAS=bias is not None, LOCAL=window > 0,
        KR=fitting(max(rows, 1), tile), **local,
    )  # fmt: skip
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
        programs = triton.cdiv(bias.shape[1], tile) * triton.cdiv(bias.shape[2], local["K"]) * heads
        workers = max(1, min(triton.cdiv(SPLIT * processors(q), programs), batch * blocks))
        d_bias = torch.empty(workers, *bias.shape, dtype=torch.float32, device=q.device)
        kernels.backward_bias[(programs * workers,)](
            q, k, v, pad, table, lse, delta, seed, d_out, d_bias,
            *strides(q, k, v, d_out), *sizes, batch * blocks, workers, **local,
        )  # fmt: skip
        grads.append(d_bias.sum(dim=0).to(bias.dtype))
    return grads


def backward_keys(
    q: Tensor, k: Tensor, v: Tensor, pad: Tensor, table: Tensor, lse: Tensor, delta: Tensor, seed: Tensor,
    d_out: Tensor, d_k: Tensor, d_v: Tensor, sizes: tuple[Any, ...], constants: dict[str, Any],
) -> None:  # fmt: skip
    g, most = constants, constants["T"]
    sides = [(g["SY"], g["RY"], g["WY"], sizes[0]), (g["SX"], g["RX"], g["WX"], sizes[1])]
    blocks = queries = 1
    for side, reach, window, length in sides:
        blocks *= triton.cdiv(length + (side - reach if reach else 0), side)
        queries *= side + triton.cdiv(2 * reach, window) * window
    size = g["SY"] * g["SX"]
    constants = {**constants, "K": fitting(size, most), "T": fitting(queries, most)}
    kernels.backward_keys[(triton.cdiv(size, constants["K"]) * blocks * q.shape[0] * q.shape[1],)](
        q, k, v, pad, table, lse, delta, seed, d_out, d_k, d_v, *strides(q, k, v, d_out, d_k, d_v), *sizes, **constants
    )


tiles_attention = Operator(
    "tiles",
    attend,
    attend_backward,
    fake=lambda q, *_: outputs(q),
    fake_backward=lambda d_out, out, lse, *inputs: like_inputs(*inputs[:5], inputs[7]),
    tensors=[0, 1, 2, 3, 4, 7],
)


def spread(bias: Tensor, geometry: Tiles, queries: list[range], keys: list[range]) -> Tensor:
    """The table over offsets [H, offsets, offsets] as [H, queries, keys, padded], for places along both axes."""
    middle, last = geometry.offsets // 2, geometry.offsets - 1
    offsets = []
    for q, k in zip(queries, keys, strict=True):
        q_places, k_places = (torch.arange(r.start, r.stop, device=bias.device) for r in (q, k))
        offsets.append((q_places[:, None] - k_places + middle).clamp(0, last))  # outside the table nothing is seen
    y, x = offsets
    return bias[:, y[:, None, :, None], x[None, :, None, :]].flatten(3, 4).flatten(1, 2)


def bias_of_block(bias: Tensor, geometry: Tiles, tile: int) -> Tensor:
    """The bias between the queries of a block and the keys it sees; lines are filled up, so that they are aligned."""
    g = geometry_of(geometry.window, geometry.height, geometry.width, tile)
    sides = [(g["SY"], g["RY"]), (g["SX"], g["RX"])]
    found = spread(bias, geometry, [range(s) for s, _ in sides], [range(-r, s + r) for s, r in sides])
    return torch.nn.functional.pad(found, (0, -found.shape[2] % ALIGNED)).contiguous()


def bias_of_keys(bias: Tensor, geometry: Tiles, tile: int) -> Tensor:
    """The bias between the keys of a block, which starts `reach` after a window does, and the queries that see it."""
    g = geometry_of(geometry.window, geometry.height, geometry.width, tile)
    sides = [(g["SY"], g["RY"], g["WY"]), (g["SX"], g["RX"], g["WX"])]
    queries = [range(-r, s - r + -(-2 * r // w) * w) for s, r, w in sides]
    found = spread(bias, geometry, queries, [range(s) for s, _, _ in sides]).transpose(1, 2)
    return torch.nn.functional.pad(found, (0, -found.shape[2] % ALIGNED)).contiguous()
