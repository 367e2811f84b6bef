"""Sums over the lines of a matrix, such as the gradient of a linear layer's bias: PyTorch takes several times as long.

T lines and W columns of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.launch import cdiv, power_of_2, processors

SPLIT = 8  # programs a multiprocessor gets


@Kernel
@triton.jit(do_not_specialize=["count", "workers"])
def kernel(x, sums, stride, count, columns, workers, T: tl.constexpr, W: tl.constexpr):
    """Each worker's share of the sums."""
    blocks = tl.cdiv(columns, W)
    worker = tl.program_id(0) // blocks
    d = tl.program_id(0) % blocks * W + tl.arange(0, W)
    total = tl.zeros([T, W], tl.float32)
    for first in range(worker * T, count, workers * T):
        n = first + tl.arange(0, T)
        inside = (n < count)[:, None] & (d < columns)[None, :]
        total += tl.load(x + n.to(tl.int64)[:, None] * stride + d[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + worker * columns + d, tl.sum(total, 0), mask=d < columns)


def sum_of_lines(x: Tensor) -> Tensor:
    """x [any, C] summed over its lines, in float32, then in its own dtype."""
    x = x if x.stride(1) == 1 else x.contiguous()  # the gradient of a sum is one number, expanded
    count, columns = x.shape
    width = min(power_of_2(columns), 128)
    lines = 4096 // width
    blocks = cdiv(columns, width)
    workers = max(1, min(SPLIT * processors(x) // blocks, cdiv(count, lines)))
    shares = torch.empty(workers, columns, dtype=torch.float32, device=x.device)
    kernel[(workers * blocks,)](x, shares, x.stride(0), count, columns, workers, T=lines, W=width)
    return shares.sum(dim=0).to(x.dtype)
