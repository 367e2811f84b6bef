"""Dynamic projection (Eq. 3) as Triton kernels: softmax over the tokens and both weighted sums in one pass.

With the logits A of a segment, P = softmax(A) over its tokens, K̄ = Pᵀ K and V̄ = Pᵀ V. The forward pass meets the tokens
block by block and keeps, of each row, the highest logit, the sum of exp(A - highest) and both weighted sums; where a
higher logit comes, what has been summed shrinks. A long segment is cut into parts, whose rows a second kernel combines,
weighted by their sums. Kept for the backward pass: log Σ exp(A), which gives P back without another sum.
Backward, with dK̄ and dV̄ given: dK = P dK̄, dV = P dV̄, dP = K dK̄ᵀ + V dV̄ᵀ, dA = P (dP - Δ), Δ = dK̄·K̄ + dV̄·V̄ of a row.
A segment without real tokens has the log-sum-exp +∞ in memory: then P is 0, and so is all that follows.

Ranks up to SUMS are sums of products, as many rows at a time as fill the processor; above, matrix products.

B batch, H heads, N tokens, D head width, R rank, S segments. In kernels: T tokens, X rows and W ≥ D numbers at a time.
`line` counts the rows of all segments, s·R + r; where segments are cut into parts, those of all parts. Programs of
neighbouring heads run together, because their tokens are neighbours in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.launch import by_token, cdiv, power_of_2
from longshort.ops.triton.operator import Operator

SUMS = 4  # a matrix product has at least 16 lines: with fewer rows than this, most of it is padding
PROGRAMS = 264  # how many programs to make of few heads and few segments: two for each processor of an H200
LENGTHS = ["tokens", "length", "segments", "lines", "parts", "part"]  # change with the text: not worth a new kernel


def project_and_sum(
    logits: Tensor, k: Tensor, v: Tensor, segment: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, and the log-sum-exp of the logits of each row, float32 [B, S·R, H]."""
    rows = empty_rows(logits, k, v, segment, mask)
    if rows[0].numel() == 0:
        return rows
    batch, heads, tokens, width = k.shape
    rank, length = logits.shape[2] // heads, segment or tokens
    segments = tokens // length
    plan = make_plan(width, rank, length, k.dtype)
    parts, part = plan.divide(length, batch * heads * segments * rank)
    lines = segments * parts * rank
    found = rows if parts == 1 else empty_parts(k, lines)
    kernel, blocks = (
        (sums_kernel, cdiv(lines, plan.rows))
        if rank <= SUMS
        else (products_kernel, segments * parts * cdiv(rank, plan.rows))
    )
    kernel[(batch * blocks * heads,)](
        *(logits, k, v, mask, *found),
        *(logits.stride(), k.stride(), v.stride(), (0, 0) if mask is None else mask.stride()),
        *(heads, length, segments, parts, part),
        **dict(D=width, R=rank, T=plan.tokens, X=plan.rows, W=plan.width, num_warps=plan.warps),
    )
    if parts > 1:
        combine_kernel[(batch * segments * rank * heads,)](
            *(*found, *rows, heads, parts), D=width, R=rank, T=max(1, 4096 // plan.width), W=plan.width
        )
    return rows


def empty_rows(
    logits: Tensor, k: Tensor, v: Tensor, segment: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the rows of k and of v, and for their log-sum-exp."""
    batch, heads, tokens, width = k.shape
    lines = (1 if segment is None else tokens // segment) * (logits.shape[2] // heads)
    like = k[:, :, :1].expand(batch, heads, lines, width)
    return by_token(like), by_token(like), k.new_empty(batch, lines, heads, dtype=torch.float32)


def empty_parts(k: Tensor, lines: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for rows of parts, in float32 because they are not final."""
    batch, heads, _, width = k.shape
    k_rows, v_rows = (k.new_empty(batch, lines, heads, width, dtype=torch.float32) for _ in range(2))
    return k_rows, v_rows, k.new_empty(batch, lines, heads, dtype=torch.float32)


def project_backward(
    dk_rows: Tensor,
    dv_rows: Tensor,
    k_rows: Tensor,
    v_rows: Tensor,
    lse: Tensor,
    logits: Tensor,
    k: Tensor,
    v: Tensor,
    segment: int | None,
    mask: Tensor | None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of logits, k and v. Those of k and v are added to dk and dv, or have the strides of k and v."""
    gradients = empty_gradients(dk_rows, dv_rows, k_rows, v_rows, lse, logits, k, v, dk, dv)
    if k_rows.numel() == 0:
        for gradient in gradients if dk is None else gradients[:1]:
            gradient.zero_()
        return gradients
    batch, heads, tokens, width = k.shape
    rank, length = logits.shape[2] // heads, segment or tokens
    segments = tokens // length
    plan = make_plan_backward(width, rank, length, k.dtype)
    # Rows lie in memory as [B, S·R, H, D], here and in the kernels.
    k_rows, v_rows, dk_rows, dv_rows = (t.transpose(1, 2).contiguous() for t in (k_rows, v_rows, dk_rows, dv_rows))
    strides = [t.stride() for t in (logits, k, v)]
    strides += [(0, 0) if mask is None else mask.stride(), *(t.stride() for t in gradients[1:])]
    sizes = dict(ADD=dk is not None, D=width, R=rank, T=plan.tokens, W=plan.width, num_warps=plan.warps)
    if rank <= SUMS:
        sums_backward_kernel[(batch * cdiv(tokens, plan.tokens) * heads,)](
            *(logits, k, v, mask, lse, k_rows, v_rows, dk_rows, dv_rows, *gradients),
            *(*strides, heads, tokens, length, segments),
            **sizes,
        )
    else:
        delta, lines, step = torch.empty_like(lse), lse.numel(), max(1, 2048 // plan.width)
        delta_kernel[(cdiv(lines, step),)](
            *(k_rows, v_rows, dk_rows, dv_rows, delta, lines), D=width, X=step, W=plan.width
        )
        blocks = cdiv(tokens, length) * cdiv(length, plan.tokens)
        products_backward_kernel[(batch * blocks * heads,)](
            *(logits, k, v, mask, lse, delta, dk_rows, dv_rows, *gradients),
            *(*strides, heads, tokens, length, segments),
            X=plan.rows,
            **sizes,
        )
    return gradients


def empty_gradients(*tensors: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of logits, k and v."""
    logits, k, v = tensors[5:8]
    dk, dv = (torch.empty_like(t) if given is None else given for t, given in zip((k, v), tensors[-2:], strict=True))
    return logits.new_empty(logits.shape), dk, dv


project = Operator(
    "project",
    project_and_sum,
    project_backward,
    fake=empty_rows,
    fake_backward=lambda *tensors: empty_gradients(*tensors, None, None),
    tensors=[0, 1, 2],
    results=2,
)


class Plan(NamedTuple):
    """How much a program does at a time."""

    tokens: int  # T
    rows: int  # X
    width: int  # W
    warps: int

    def divide(self, length: int, rows: int) -> tuple[int, int]:
        """Into how many parts to cut segments that have this many rows in all, and the tokens of a part."""
        programs = cdiv(rows, self.rows)
        step = max(self.tokens, 32)  # below, a part's rows would weigh as much as its tokens
        parts = min(cdiv(length, step), cdiv(PROGRAMS, programs))
        part = length if parts == 1 else cdiv(cdiv(length, parts), step) * step
        return cdiv(length, part), part


def power(n: int, least: int = 16, most: int = 1 << 30) -> int:
    """The power of two that n fits into, between two others; a matrix product needs 16 of each."""
    return min(max(power_of_2(n), least), most)


# The sizes below are the largest for which Triton's code for an H200 keeps everything in registers and leaves room for
# two programs or more on a processor. In float32, whose exact products run outside the tensor cores, that is little.


def make_plan(width: int, rank: int, length: int, dtype: torch.dtype) -> Plan:
    w, exact = power(width), dtype == torch.float32
    if rank <= SUMS:  # a thread has 8 numbers of a token, 16 bytes if short, and reads as much of T tokens at once
        return Plan(power(length, 1, 4 if exact else 8), max(1, 1024 // w), w, warps=4)
    if exact:
        return Plan(16, power(rank, 16, min(64, 2048 // w)), w, warps=8 if w == 128 else 4)
    rows = power(rank, 16, min(128, 4096 // w))
    tokens = power(length, 16, 32 if rows >= 64 or w == 128 else 64)
    return Plan(tokens, rows, w, warps=2 if max(tokens, rows) * w <= 1024 else 4)


def make_plan_backward(width: int, rank: int, length: int, dtype: torch.dtype) -> Plan:
    w, exact = power(width), dtype == torch.float32
    if rank <= SUMS:
        return Plan(max(1, 2048 // w), 1, w, warps=4)
    if exact:
        return Plan(power(length, 16, 32), 16, w, warps=8 if w >= 64 else 4)
    rows, tokens = power(rank, 16, 32), power(length, 16, 64)
    return Plan(tokens, rows, w, warps=2 if max(tokens, rows) * w <= 1024 else 8 if w == 128 else 4)


@triton.jit
def real(mask, token, inside, stride):
    """Which of the tokens count."""
    if mask is not None:
        inside = inside & tl.load(mask + token * stride, mask=inside, other=0).to(tl.int1)
    return inside


@triton.jit
def store_rows(
    k_rows, v_rows, lse, at, inside, k_sum, v_sum, highest, total, D: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """What has been summed as averages, 0 where no token counted."""
    d = tl.arange(0, W)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    share = 1.0 / total
    tl.store(lse + at, tl.where(none, float("inf"), highest + tl.log(total)), mask=inside)
    at = at[:, None] * D + d[None, :]
    inside = inside[:, None] & (d < D)[None, :]
    tl.store(k_rows + at, (k_sum * share[:, None]).to(k_rows.dtype.element_ty), mask=inside)
    tl.store(v_rows + at, (v_sum * share[:, None]).to(v_rows.dtype.element_ty), mask=inside)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def sums_kernel(
    logits, k, v, mask, k_rows, v_rows, lse,
    logits_strides, k_strides, v_strides, mask_strides,
    heads, length, segments, parts, part,
    D: tl.constexpr, R: tl.constexpr, T: tl.constexpr, X: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """X lines, each over its own tokens, T of them at a time, which are one thread's: no sum crosses threads."""
    lines = segments * parts * R
    blocks = tl.cdiv(lines, X)
    program = tl.program_id(0)
    head = (program % heads).to(tl.int64)
    line = program // heads % blocks * X + tl.arange(0, X)
    batch = (program // heads // blocks).to(tl.int64)
    d = tl.arange(0, W)

    # [T·X], the lines of the first token, then those of the second: so a thread gets all tokens of a line.
    each, t = program // heads % blocks * X + tl.arange(0, T * X) % X, tl.arange(0, T * X) // X
    row, piece = each % R, each // R
    place = piece % parts * part  # where a part begins in its segment
    first = (piece // parts * length + place).to(tl.int64)
    tokens = tl.where(each < lines, tl.minimum(part, length - place), 0)
    logits += batch * logits_strides[0] + (first + t) * logits_strides[1] + (head * R + row) * logits_strides[2]
    k += batch * k_strides[0] + head * k_strides[1] + (first + t)[:, None] * k_strides[2] + d[None, :] * k_strides[3]
    v += batch * v_strides[0] + head * v_strides[1] + (first + t)[:, None] * v_strides[2] + d[None, :] * v_strides[3]
    if mask is not None:
        mask += batch * mask_strides[0] + (first + t) * mask_strides[1]

    highest = tl.full([X], float("-inf"), tl.float32)
    total = tl.zeros([X], tl.float32)
    k_sum = tl.zeros([X, W], tl.float32)
    v_sum = tl.zeros([X, W], tl.float32)
    for start in range(0, part, T):
        counts = real(mask, 0, start + t < tokens, mask_strides[1])
        wide = counts[:, None] & (d < D)[None, :]
        k_tokens = tl.reshape(tl.load(k, mask=wide, other=0.0), [T, X, W])
        v_tokens = tl.reshape(tl.load(v, mask=wide, other=0.0), [T, X, W])
        scores = tl.reshape(tl.load(logits, mask=counts, other=float("-inf")), [T, X]).to(tl.float32)
        before = highest
        highest = tl.maximum(highest, tl.max(scores, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)  # -∞ - -∞ is not a number
        shrink = tl.exp(before - base)
        weights = tl.exp(scores - base[None, :])
        total = total * shrink + tl.sum(weights, 0)
        k_sum = k_sum * shrink[:, None] + tl.sum(weights[:, :, None] * k_tokens, 0)
        v_sum = v_sum * shrink[:, None] + tl.sum(weights[:, :, None] * v_tokens, 0)
        logits += T * logits_strides[1]
        k += T * k_strides[2]
        v += T * v_strides[2]
        if mask is not None:
            mask += T * mask_strides[1]

    at = (batch * lines + line) * heads + head
    store_rows(k_rows, v_rows, lse, at, line < lines, k_sum, v_sum, highest, total, D, W)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def products_kernel(
    logits, k, v, mask, k_rows, v_rows, lse,
    logits_strides, k_strides, v_strides, mask_strides,
    heads, length, segments, parts, part,
    D: tl.constexpr, R: tl.constexpr, T: tl.constexpr, X: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """X rows of one part of a segment, T of its tokens at a time."""
    blocks: tl.constexpr = (R + X - 1) // X
    program = tl.program_id(0)
    head = (program % heads).to(tl.int64)
    row = program // heads % blocks * X + tl.arange(0, X)
    piece = program // heads // blocks  # of all parts of the batch
    pieces = segments * parts
    batch = (piece // pieces).to(tl.int64)
    place = piece % parts * part
    first = (piece % pieces // parts * length + place).to(tl.int64)
    tokens = tl.minimum(part, length - place)
    d = tl.arange(0, W)

    # What differs between the tokens of a block fits into 32 bits, and saves registers; where the block lies may not.
    t = tl.arange(0, T)
    logits += batch * logits_strides[0] + head * R * logits_strides[2]
    k += batch * k_strides[0] + head * k_strides[1]
    v += batch * v_strides[0] + head * v_strides[1]
    at_logits = t[:, None] * logits_strides[1] + row[None, :] * logits_strides[2]
    at_k = t[:, None] * k_strides[2] + d[None, :] * k_strides[3]
    at_v = t[:, None] * v_strides[2] + d[None, :] * v_strides[3]
    if mask is not None:
        mask += batch * mask_strides[0]

    highest = tl.full([X], float("-inf"), tl.float32)
    total = tl.zeros([X], tl.float32)
    k_sum = tl.zeros([X, W], tl.float32)
    v_sum = tl.zeros([X, W], tl.float32)
    for start in range(0, tokens, T):
        begin = first + start
        counts = real(mask, begin + t, start + t < tokens, mask_strides[1])
        scores = tl.load(
            logits + begin * logits_strides[1] + at_logits,
            mask=counts[:, None] & (row < R)[None, :],
            other=float("-inf"),
        ).to(tl.float32)  # [T, X]
        before = highest
        highest = tl.maximum(highest, tl.max(scores, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)  # -∞ - -∞ is not a number
        shrink = tl.exp(before - base)
        weights = tl.exp(scores - base[None, :])
        total = total * shrink + tl.sum(weights, 0)
        weights = tl.trans(weights.to(k.dtype.element_ty))  # [X, T]
        inside = counts[:, None] & (d < D)[None, :]
        k_tokens = tl.load(k + begin * k_strides[2] + at_k, mask=inside, other=0.0)  # [T, W]
        v_tokens = tl.load(v + begin * v_strides[2] + at_v, mask=inside, other=0.0)
        k_sum = tl.dot(weights, k_tokens, k_sum * shrink[:, None], input_precision="ieee")
        v_sum = tl.dot(weights, v_tokens, v_sum * shrink[:, None], input_precision="ieee")

    at = (piece.to(tl.int64) * R + row) * heads + head
    store_rows(k_rows, v_rows, lse, at, row < R, k_sum, v_sum, highest, total, D, W)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def combine_kernel(
    k_parts, v_parts, lse_parts, k_rows, v_rows, lse, heads, parts,
    D: tl.constexpr, R: tl.constexpr, T: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One row of a segment from those of its parts, T parts at a time."""
    program = tl.program_id(0).to(tl.int64)
    place = program % (R * heads)  # row and head
    segment = program // (R * heads)  # of the batch
    d = tl.arange(0, W)

    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    k_sum = tl.zeros([1, W], tl.float32)
    v_sum = tl.zeros([1, W], tl.float32)
    for start in range(0, parts, T):
        part = start + tl.arange(0, T)
        at = (segment * parts + part) * (R * heads) + place
        size = tl.load(lse_parts + at, mask=part < parts, other=float("inf"))
        size = tl.where(size == float("inf"), float("-inf"), size)  # of parts without real tokens
        before = highest
        highest = tl.maximum(highest, tl.max(size, 0, keep_dims=True))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        shrink = tl.exp(before - base)
        weights = tl.exp(size - base)
        total = total * shrink + tl.sum(weights, 0, keep_dims=True)
        at = at[:, None] * D + d[None, :]
        inside = (part < parts)[:, None] & (d < D)[None, :]
        k_part = tl.load(k_parts + at, mask=inside, other=0.0)  # [T, W]
        v_part = tl.load(v_parts + at, mask=inside, other=0.0)
        k_sum = k_sum * shrink[:, None] + tl.sum(weights[:, None] * k_part, 0, keep_dims=True)
        v_sum = v_sum * shrink[:, None] + tl.sum(weights[:, None] * v_part, 0, keep_dims=True)

    at = program + tl.zeros([1], tl.int64)
    store_rows(k_rows, v_rows, lse, at, at >= 0, k_sum, v_sum, highest, total, D, W)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def sums_backward_kernel(
    logits, k, v, mask, lse, k_rows, v_rows, dk_rows, dv_rows, dlogits, dk, dv,
    logits_strides, k_strides, v_strides, mask_strides, dk_strides, dv_strides,
    heads, tokens, length, segments,
    ADD: tl.constexpr, D: tl.constexpr, R: tl.constexpr, T: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """T tokens of any segments, with one row of each token's segment at a time."""
    blocks = tl.cdiv(tokens, T)
    program = tl.program_id(0)
    head = (program % heads).to(tl.int64)
    token = program // heads % blocks * T + tl.arange(0, T)
    batch = (program // heads // blocks).to(tl.int64)
    d = tl.arange(0, W)

    inside = token < tokens
    segment = token // length
    token = token.to(tl.int64)
    if mask is not None:
        mask += batch * mask_strides[0]
    counts = real(mask, token, inside & (segment < segments), mask_strides[1])
    wide = counts[:, None] & (d < D)[None, :]
    k += batch * k_strides[0] + head * k_strides[1]
    v += batch * v_strides[0] + head * v_strides[1]
    k_tokens = tl.load(k + token[:, None] * k_strides[2] + d[None, :] * k_strides[3], mask=wide, other=0.0)
    v_tokens = tl.load(v + token[:, None] * v_strides[2] + d[None, :] * v_strides[3], mask=wide, other=0.0)
    logits += batch * logits_strides[0] + head * R * logits_strides[2]
    dlogits += (batch * tokens * heads + head) * R

    dk_tokens = tl.zeros([T, W], tl.float32)
    dv_tokens = tl.zeros([T, W], tl.float32)
    for r in tl.static_range(R):
        at = ((batch * segments + segment) * R + r) * heads + head  # [T]
        scores = tl.load(logits + r * logits_strides[2] + token * logits_strides[1], mask=counts, other=float("-inf"))
        size = tl.load(lse + at, mask=counts, other=float("inf"))
        at = at[:, None] * D + d[None, :]
        dk_row = tl.load(dk_rows + at, mask=wide, other=0.0).to(tl.float32)  # [T, W]
        dv_row = tl.load(dv_rows + at, mask=wide, other=0.0).to(tl.float32)
        k_row = tl.load(k_rows + at, mask=wide, other=0.0).to(tl.float32)
        v_row = tl.load(v_rows + at, mask=wide, other=0.0).to(tl.float32)
        weights = tl.exp(scores.to(tl.float32) - size)
        slope = tl.sum(dk_row * (k_tokens - k_row) + dv_row * (v_tokens - v_row), 1)  # dP - Δ
        dscores = (weights * slope).to(dlogits.dtype.element_ty)
        tl.store(dlogits + token * (heads * R) + r, dscores, mask=inside)
        dk_tokens += weights[:, None] * dk_row
        dv_tokens += weights[:, None] * dv_row

    wide = inside[:, None] & (d < D)[None, :]
    dk += batch * dk_strides[0] + head * dk_strides[1] + token[:, None] * dk_strides[2] + d[None, :] * dk_strides[3]
    dv += batch * dv_strides[0] + head * dv_strides[1] + token[:, None] * dv_strides[2] + d[None, :] * dv_strides[3]
    if ADD:
        dk_tokens += tl.load(dk, mask=wide, other=0.0).to(tl.float32)
        dv_tokens += tl.load(dv, mask=wide, other=0.0).to(tl.float32)
    tl.store(dk, dk_tokens.to(dk.dtype.element_ty), mask=wide)
    tl.store(dv, dv_tokens.to(dv.dtype.element_ty), mask=wide)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def delta_kernel(
    k_rows, v_rows, dk_rows, dv_rows, delta, lines, D: tl.constexpr, X: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Δ of X rows of any head."""
    line = tl.program_id(0).to(tl.int64) * X + tl.arange(0, X)
    d = tl.arange(0, W)
    at = line[:, None] * D + d[None, :]
    inside = (line < lines)[:, None] & (d < D)[None, :]
    dk_row = tl.load(dk_rows + at, mask=inside, other=0.0).to(tl.float32)
    dv_row = tl.load(dv_rows + at, mask=inside, other=0.0).to(tl.float32)
    k_row = tl.load(k_rows + at, mask=inside, other=0.0).to(tl.float32)
    v_row = tl.load(v_rows + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta + line, tl.sum(dk_row * k_row + dv_row * v_row, 1), mask=line < lines)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def products_backward_kernel(
    logits, k, v, mask, lse, delta, dk_rows, dv_rows, dlogits, dk, dv,
    logits_strides, k_strides, v_strides, mask_strides, dk_strides, dv_strides,
    heads, tokens, length, segments,
    ADD: tl.constexpr, D: tl.constexpr, R: tl.constexpr, T: tl.constexpr, X: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """T tokens of one segment, with X of its rows at a time. The unfinished segment counts too: its gradients are 0."""
    blocks = tl.cdiv(length, T)
    begun = tl.cdiv(tokens, length)  # segments, with the unfinished one
    program = tl.program_id(0)
    head = (program % heads).to(tl.int64)
    place = program // heads % blocks * T
    segment = (program // heads // blocks % begun).to(tl.int64)
    batch = (program // heads // blocks // begun).to(tl.int64)
    first = segment * length + place
    t, d = tl.arange(0, T), tl.arange(0, W)

    inside = (place + t < length) & (first + t < tokens)
    if mask is not None:
        mask += batch * mask_strides[0]
    counts = real(mask, first + t, inside & (segment < segments), mask_strides[1])
    wide = counts[:, None] & (d < D)[None, :]
    k += batch * k_strides[0] + head * k_strides[1] + first * k_strides[2]
    v += batch * v_strides[0] + head * v_strides[1] + first * v_strides[2]
    k_tokens = tl.load(k + (t[:, None] * k_strides[2] + d[None, :] * k_strides[3]), mask=wide, other=0.0)  # [T, W]
    v_tokens = tl.load(v + (t[:, None] * v_strides[2] + d[None, :] * v_strides[3]), mask=wide, other=0.0)
    logits += batch * logits_strides[0] + head * R * logits_strides[2] + first * logits_strides[1]
    dlogits += ((batch * tokens + first) * heads + head) * R
    at = (batch * segments + segment) * R * heads + head  # the first row
    lse += at
    delta += at
    dk_rows += at * D
    dv_rows += at * D

    dk_tokens = tl.zeros([T, W], tl.float32)
    dv_tokens = tl.zeros([T, W], tl.float32)
    for start in range(0, R, X):
        row = start + tl.arange(0, X)
        present = (row < R) & (segment < segments)
        size = tl.load(lse + row * heads, mask=present, other=float("inf"))
        mean = tl.load(delta + row * heads, mask=present, other=0.0)
        wide_rows = present[:, None] & (d < D)[None, :]
        at_rows = row[:, None] * (heads * D) + d[None, :]
        dk_row = tl.load(dk_rows + at_rows, mask=wide_rows, other=0.0)  # [X, W]
        dv_row = tl.load(dv_rows + at_rows, mask=wide_rows, other=0.0)
        scores = tl.load(
            logits + (t[:, None] * logits_strides[1] + row[None, :] * logits_strides[2]),
            mask=counts[:, None] & present[None, :],
            other=float("-inf"),
        ).to(tl.float32)
        weights = tl.exp(scores - size[None, :])  # [T, X]
        slope = tl.dot(k_tokens, tl.trans(dk_row), input_precision="ieee")
        slope = tl.dot(v_tokens, tl.trans(dv_row), slope, input_precision="ieee")  # dP
        dscores = (weights * (slope - mean[None, :])).to(dlogits.dtype.element_ty)
        written = inside[:, None] & (row < R)[None, :]
        tl.store(dlogits + (t[:, None] * (heads * R) + row[None, :]), dscores, mask=written)
        weights = weights.to(k.dtype.element_ty)
        dk_tokens = tl.dot(weights, dk_row, dk_tokens, input_precision="ieee")
        dv_tokens = tl.dot(weights, dv_row, dv_tokens, input_precision="ieee")

    wide = inside[:, None] & (d < D)[None, :]
    dk += batch * dk_strides[0] + head * dk_strides[1] + first * dk_strides[2]
    dv += batch * dv_strides[0] + head * dv_strides[1] + first * dv_strides[2]
    dk += t[:, None] * dk_strides[2] + d[None, :] * dk_strides[3]
    dv += t[:, None] * dv_strides[2] + d[None, :] * dv_strides[3]
    if ADD:
        dk_tokens += tl.load(dk, mask=wide, other=0.0).to(tl.float32)
        dv_tokens += tl.load(dv, mask=wide, other=0.0).to(tl.float32)
    tl.store(dk, dk_tokens.to(dk.dtype.element_ty), mask=wide)
    tl.store(dv, dv_tokens.to(dv.dtype.element_ty), mask=wide)
