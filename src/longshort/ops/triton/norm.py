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
from longshort.ops.triton.launch import cdiv, power_of_2, processors
from longshort.ops.triton.operator import Operator

BLOCK = 2048  # numbers of a block
WARPS = 2  # of a program: sums over a line that lies in few threads are cheap
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
def forward(
    a, b, weight, bias, out_a, out_b, a_n, b_n, count, eps, C: tl.constexpr, W: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    x, out, stride = a, out_a, a_n
    if tl.program_id(0) % 2 == 1:
        x, out, stride = b, out_b, b_n
    n, d = tl.program_id(0) // 2 * T + tl.arange(0, T), tl.arange(0, W)
    inside = (n < count)[:, None] & (d < C)[None, :]
    n = n.to(tl.int64)[:, None]
    line, _ = standard(tl.load(x + n * stride + d[None, :], mask=inside, other=0.0), inside, eps, C)
    w = tl.load(weight + d, mask=d < C, other=0.0).to(tl.float32)
    b_line = tl.load(bias + d, mask=d < C, other=0.0).to(tl.float32)
    tl.store(out + n * C + d[None, :], (line * w[None, :] + b_line[None, :]).to(out.dtype.element_ty), mask=inside)


@Kernel
@triton.jit(do_not_specialize=["count", "workers"])
def backward(
    d_out_a, d_out_b, a, b, weight, d_a, d_b, d_weight, d_bias, a_n, b_n, da_n, db_n,
    count, eps, workers, C: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of both tensors, and each worker's share of those of weight and bias."""
    worker = tl.program_id(0)
    x, d_y, d_x, x_n, dx_n = a, d_out_a, d_a, a_n, da_n
    if worker % 2 == 1:
        x, d_y, d_x, x_n, dx_n = b, d_out_b, d_b, b_n, db_n
    d = tl.arange(0, W)
    w = tl.load(weight + d, mask=d < C, other=0.0).to(tl.float32)
    sum_weight = tl.zeros([T, W], tl.float32)
    sum_bias = tl.zeros([T, W], tl.float32)
    for block in range(worker // 2, tl.cdiv(count, T), workers // 2):
        n = block * T + tl.arange(0, T)
        inside = (n < count)[:, None] & (d < C)[None, :]
        n = n.to(tl.int64)[:, None]
        line, scale = standard(tl.load(x + n * x_n + d[None, :], mask=inside, other=0.0), inside, eps, C)
        grad = tl.load(d_y + n * C + d[None, :], mask=inside, other=0.0).to(tl.float32)
        sum_weight += grad * line
        sum_bias += grad
        grad = grad * w[None, :]
        share = line * (tl.sum(grad * line, 1) / C)[:, None] + (tl.sum(grad, 1) / C)[:, None]
        d_line = ((grad - share) * scale[:, None]).to(d_x.dtype.element_ty)
        tl.store(d_x + n * dx_n + d[None, :], d_line, mask=inside)
    tl.store(d_weight + worker * C + d, tl.sum(sum_weight, 0), mask=d < C)
    tl.store(d_bias + worker * C + d, tl.sum(sum_bias, 0), mask=d < C)


def sizes(width: int) -> dict[str, int]:
    padded = power_of_2(width)
    return dict(C=width, W=padded, T=max(1, BLOCK // padded), num_warps=max(WARPS, padded // 1024))


def lines_of(t: Tensor) -> Tensor:
    """[any, C] with features side by side; without a copy if lines have one stride."""
    t = t.reshape(-1, t.shape[-1])
    return t if t.stride(-1) == 1 else t.contiguous()


def normalise(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out_a, out_b = a.new_empty(a.shape), b.new_empty(b.shape)
    a, b = lines_of(a), lines_of(b)
    constants = sizes(a.shape[-1])
    if len(a):
        grid = (2 * cdiv(len(a), constants["T"]),)
        forward[grid](a, b, weight, bias, out_a, out_b, a.stride(0), b.stride(0), len(a), eps, **constants)
    return out_a, out_b


def normalise_backward(
    d_out_a: Tensor, d_out_b: Tensor, out_a: Tensor, out_b: Tensor,
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, eps: float,
) -> list[Tensor]:  # fmt: skip
    d_a, d_b = a.new_empty(a.shape), b.new_empty(b.shape)
    return [d_a, d_b, *write_gradients(d_out_a, d_out_b, a, b, weight, eps, d_a, d_b)]


def write_gradients(
    d_out_a: Tensor, d_out_b: Tensor, a: Tensor, b: Tensor, weight: Tensor, eps: float, d_a: Tensor, d_b: Tensor
) -> list[Tensor]:
    """Writes the gradients of a and b, gives those of weight and bias."""
    d_out_a, d_out_b = d_out_a.contiguous(), d_out_b.contiguous()
    a, b = lines_of(a), lines_of(b)
    d_a, d_b = (t.view(-1, t.shape[-1]) for t in (d_a, d_b))  # written into, so never copies
    constants = sizes(a.shape[-1])
    workers = 2 * max(1, min(SPLIT * processors(a) // 2, cdiv(len(a), constants["T"])))
    shares = torch.empty(2, workers, a.shape[-1], dtype=torch.float32, device=a.device)
    backward[(workers,)](
        d_out_a, d_out_b, a, b, weight, d_a, d_b, shares[0], shares[1],
        a.stride(0), b.stride(0), d_a.stride(0), d_b.stride(0), len(a), eps, workers, **constants,
    )  # fmt: skip
    d_weight, d_bias = shares.sum(dim=1).to(weight.dtype).unbind()
    return [d_weight, d_bias]


normalise_both = Operator(
    "normalise",
    normalise,
    normalise_backward,
    fake=lambda a, b, *_: (a.new_empty(a.shape), b.new_empty(b.shape)),
    fake_backward=lambda *tensors: [t.new_empty(t.shape) for t in tensors[4:8]],
    tensors=[0, 1, 2, 3],
    results=2,
)
