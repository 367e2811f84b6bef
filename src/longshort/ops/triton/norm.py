"""LayerNorm of two tensors with one set of weights, as DualLN needs it, in one kernel each way.

With x̂ = (x - mean) / σ and y = w x̂ + b: dx = (w dy - mean(w dy) - x̂ mean(w dy x̂)) / σ, dw = Σ dy x̂, db = Σ dy.
Statistics are computed again in the backward pass, which reads x anyway.

C width, W the power of two that C is padded to, T tokens of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.launch import processors
from longshort.ops.triton.operator import Operator

BLOCK = 4096  # numbers of a block
SPLIT = 16  # programs a multiprocessor gets: many, since each waits for memory


@triton.jit
def standard(x, inside, eps, C: tl.constexpr):
    """x̂ and 1 / σ of the lines of x."""
    x = x.to(tl.float32)
    centred = tl.where(inside, x - (tl.sum(x, 1) / C)[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / C + eps
    scale = 1.0 / tl.sqrt(tl.where(variance > 0, variance, 1.0))  # with eps 0, lines that are not there have none
    return centred * scale[:, None], scale


@Kernel
@triton.jit(do_not_specialize=["count"])
def forward(a, b, weight, bias, out_a, out_b, count, eps, C: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    x, out = a, out_a
    if tl.program_id(0) % 2 == 1:
        x, out = b, out_b
    n, d = tl.program_id(0) // 2 * T + tl.arange(0, T), tl.arange(0, W)
    inside = (n < count)[:, None] & (d < C)[None, :]
    at = n.to(tl.int64)[:, None] * C + d[None, :]
    line, _ = standard(tl.load(x + at, mask=inside, other=0.0), inside, eps, C)
    w = tl.load(weight + d, mask=d < C, other=0.0).to(tl.float32)
    b_line = tl.load(bias + d, mask=d < C, other=0.0).to(tl.float32)
    tl.store(out + at, (line * w[None, :] + b_line[None, :]).to(out.dtype.element_ty), mask=inside)


@Kernel
@triton.jit(do_not_specialize=["count", "workers"])
def backward(
    d_out_a, d_out_b, a, b, weight, d_a, d_b, d_weight, d_bias, count, eps, workers,
    C: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of both tensors, and each worker's share of those of weight and bias."""
    worker = tl.program_id(0)
    x, d_y, d_x = a, d_out_a, d_a
    if worker % 2 == 1:
        x, d_y, d_x = b, d_out_b, d_b
    d = tl.arange(0, W)
    w = tl.load(weight + d, mask=d < C, other=0.0).to(tl.float32)
    sum_weight = tl.zeros([W], tl.float32)
    sum_bias = tl.zeros([W], tl.float32)
    for block in range(worker // 2, tl.cdiv(count, T), workers // 2):
        n = block * T + tl.arange(0, T)
        inside = (n < count)[:, None] & (d < C)[None, :]
        at = n.to(tl.int64)[:, None] * C + d[None, :]
        line, scale = standard(tl.load(x + at, mask=inside, other=0.0), inside, eps, C)
        grad = tl.load(d_y + at, mask=inside, other=0.0).to(tl.float32)
        sum_weight += tl.sum(grad * line, 0)
        sum_bias += tl.sum(grad, 0)
        grad = grad * w[None, :]
        share = line * (tl.sum(grad * line, 1) / C)[:, None] + (tl.sum(grad, 1) / C)[:, None]
        tl.store(d_x + at, ((grad - share) * scale[:, None]).to(d_x.dtype.element_ty), mask=inside)
    tl.store(d_weight + worker * C + d, sum_weight, mask=d < C)
    tl.store(d_bias + worker * C + d, sum_bias, mask=d < C)


def sizes(width: int) -> dict[str, int]:
    padded = triton.next_power_of_2(width)
    return dict(C=width, W=padded, T=max(1, BLOCK // padded))


def normalise(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    a, b = a.contiguous(), b.contiguous()
    out_a, out_b = torch.empty_like(a), torch.empty_like(b)
    constants = sizes(a.shape[-1])
    count = a.numel() // a.shape[-1]
    if count:
        grid = (2 * triton.cdiv(count, constants["T"]),)
        forward[grid](a, b, weight, bias, out_a, out_b, count, eps, **constants)
    return out_a, out_b


def normalise_backward(
    d_out_a: Tensor, d_out_b: Tensor, out_a: Tensor, out_b: Tensor,
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, eps: float,
) -> list[Tensor]:  # fmt: skip
    a, b, d_out_a, d_out_b = (t.contiguous() for t in (a, b, d_out_a, d_out_b))
    d_a, d_b = torch.empty_like(a), torch.empty_like(b)
    constants = sizes(a.shape[-1])
    count = a.numel() // a.shape[-1]
    workers = 2 * max(1, min(SPLIT * processors(a) // 2, triton.cdiv(count, constants["T"])))
    shares = torch.empty(2, workers, a.shape[-1], dtype=torch.float32, device=a.device)
    backward[(workers,)](
        d_out_a, d_out_b, a, b, weight, d_a, d_b, shares[0], shares[1], count, eps, workers, **constants
    )
    return [d_a, d_b, *(s.sum(dim=0).to(weight.dtype) for s in shares.unbind())]


normalise_both = Operator(
    "normalise",
    normalise,
    normalise_backward,
    fake=lambda a, b, *_: (torch.empty_like(a.contiguous()), torch.empty_like(b.contiguous())),
    fake_backward=lambda *tensors: [torch.empty_like(t.contiguous()) for t in tensors[4:8]],
    tensors=[0, 1, 2, 3],
    results=2,
)
