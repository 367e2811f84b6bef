"""What the launches of all kernels share: memory, tile sizes, the gradients of rows.

B batch, H heads, N queries, R rows, D head width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from longshort.ops.triton.rows import backward_rows

SPLIT = 4  # programs a multiprocessor gets, where work is split to fill the device


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own is made for kernels, and takes as long as a small operation."""
    return -(-a // b)


def processors(t: Tensor) -> int:
    return multiprocessors(t.get_device()) if t.is_cuda else 1


@cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def dense(t: Tensor) -> Tensor:
    """The kernels take any strides but along the head width."""
    return t if t.stride(-1) == 1 else t.contiguous()


def by_token(like: Tensor) -> Tensor:
    """[B, H, N, D] with the memory of [B, N, H, D], so that merging the heads costs nothing."""
    _, heads, tokens, width = like.shape
    strides = (tokens * heads * width, width, heads * width, 1)  # not a transposed view, which no one could write into
    return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)


def outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the output and for the logarithm to base 2 of the sums of weights [B, H, N]."""
    return by_token(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def like_inputs(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Memory for gradients: of q, k and v laid out as these are, of the others dense."""
    contiguous = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in others if t is not None]
    return [torch.empty_like(dense(t)) for t in (q, k, v)] + contiguous


def strides(*tensors: Tensor) -> list[int]:
    return [s for t in tensors for s in t.stride()[:-1]]


def bytes_of(mask: Tensor | None, like: Tensor) -> Tensor:
    """A mask as the kernels read it; where there is none, any pointer, which they do not follow."""
    return like if mask is None else mask.contiguous().view(torch.uint8)


def padded(width: int) -> int:
    return max(16, power_of_2(width))


def power_of_2(count: int) -> int:
    """The least power of two that is not below count."""
    return 1 << (count - 1).bit_length()


def registers(most: int, width: int, like: Tensor) -> dict[str, int]:
    """A limit, so that more programs fit a multiprocessor; none where so few would not do."""
    return dict(maxnreg=most) if padded(width) <= 64 and like.dtype != torch.float32 else {}


def tile_size(t: Tensor) -> int:
    """Lines of a tile: as many as registers hold."""
    return 32 if t.dtype == torch.float32 else 64


def fitting(count: int, most: int) -> int:
    """The tile, a power of two, into which `count` divides with the least left over; of equals the largest."""
    sizes = [s for s in (64, 32, 16) if s <= most]
    cost = {16: 1.5, 32: 1.15}  # small products are less efficient
    return min(sizes, key=lambda s: -(-count // s) * s * cost.get(s, 1.0))


def rows_backward(
    q: Tensor, k_rows: Tensor, v_rows: Tensor, bits: Tensor, far: Tensor, far_strides: list[int],
    lse: Tensor, delta: Tensor, seed: Tensor, d_out: Tensor, start: int, first_row: int, scale: float, dropout: float,
    **constants: Any,
) -> list[Tensor]:  # fmt: skip
    """Gradients of k_rows and v_rows."""
    batch, heads, queries, width = q.shape
    rows = k_rows.shape[2]
    if k_rows.numel() == 0:
        return [k_rows.new_zeros(k_rows.shape), v_rows.new_zeros(v_rows.shape)]
    tiles = cdiv(rows, constants["K"]) * batch * heads
    splits = max(1, min(cdiv(SPLIT * processors(q), tiles), cdiv(queries, constants["T"])))
    exact = torch.float32 if splits > 1 else q.dtype
    d_k, d_v = (torch.empty(splits, batch, heads, rows, width, dtype=exact, device=q.device) for _ in range(2))
    backward_rows[(tiles * splits,)](
        q, k_rows, v_rows, bits, far, lse, delta, seed, d_out, d_k, d_v,
        *strides(q, k_rows, v_rows), *far_strides, *strides(d_out),
        queries, rows, start, first_row, heads, batch * heads, scale, dropout, splits,
        **constants, num_stages=2 if constants["POSITIONS"] else 3,
    )  # fmt: skip
    return [d.sum(dim=0).to(q.dtype) if splits > 1 else d[0] for d in (d_k, d_v)]
