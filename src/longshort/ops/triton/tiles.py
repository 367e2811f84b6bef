"""Fused kernels of the bidirectional forms: a sequence is a grid of width 1.

A block of queries is SY × SX tokens, whole windows along both axes; the keys it sees are the block grown by its reach,
and both are numbered line by line. For the gradients of keys, blocks of keys start `reach` tokens after a window does:
the queries that see such a block fill whole windows too, one more than the block has, and few pairs are in vain.

T queries of a tile, K keys of a tile, D head width, W the power of two that D is padded to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.softmax import attend, factors, finish, gathered, product, score_gradients, store_lines

SIZES = ["height", "width", "rows"]  # a new size must not compile anew


@triton.jit
def sees(y, other, WINDOW: tl.constexpr, REACH: tl.constexpr):
    """Whether a query at y sees a key at `other`, along one axis."""
    home = y // WINDOW * WINDOW
    return (other >= home - REACH) & (other < home + WINDOW + REACH)


@triton.jit
def token(slot, y0, x0, height, width, SIDE: tl.constexpr, SLOTS: tl.constexpr):
    """Place (y, x) of a slot of a block whose corner is (y0, x0), its number, and whether there is such a token."""
    y, x = y0 + slot // SIDE, x0 + slot % SIDE
    inside = (slot < SLOTS) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return y, x, y * width + x, inside


@triton.jit
def unpadded(mask, place, inside, MASK: tl.constexpr):
    """Which of the tokens at these places are no padding."""
    if MASK:
        inside = inside & (tl.load(mask + place, mask=inside, other=0) != 0)
    return inside


@triton.jit
def some(which, MASK: tl.constexpr):
    """1, or 0 for a tile of padding alone, which has nothing to do."""
    if MASK:
        return tl.max(which.to(tl.int32), 0)
    return 1


@Kernel
@triton.jit(do_not_specialize=SIZES)
def forward(
    q, k, v, k_rows, v_rows, mask, mask_rows, bias, out, lse, seed,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, kr_b, kr_h, kr_n, vr_b, vr_h, vr_n, o_b, o_h, o_n,
    height, width, rows, heads, scale, dropout,
    WY: tl.constexpr, WX: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, LOCAL: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr, KR: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (SY * SX + T - 1) // T
    KX: tl.constexpr = SX + 2 * RX
    KEYS: tl.constexpr = (SY + 2 * RY) * KX
    LINE: tl.constexpr = (KEYS + 15) // 16 * 16  # of the bias
    across = tl.cdiv(width, SX)
    tile = tl.program_id(0) % TILES
    block = tl.program_id(0) // TILES % (tl.cdiv(height, SY) * across)
    head = tl.program_id(0) // TILES // (tl.cdiv(height, SY) * across)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    y0, x0 = block // across * SY, block % across * SX
    slot = tile * T + tl.arange(0, T)
    y, x, n, asks = token(slot, y0, x0, height, width, SX, SY * SX)
    tokens = height * width
    log_scale = scale * 1.4426950408889634
    real = unpadded(mask, b * tokens + n, asks, MASK)
    work = some(real, MASK)

    query = gathered(q + b * q_b + h * q_h, n, q_n, asks, D, W)
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    acc = tl.zeros([T, W], tl.float32)
    highest = tl.full([T], float("-inf"), tl.float32)
    total = tl.zeros([T], tl.float32)

    top = tl.maximum(RY - y0, 0) * KX // K * K  # lines of keys above and below the image are not there
    for first in range(top, tl.minimum(SY + 2 * RY, height - y0 + RY) * KX * LOCAL * work, K):
        key_slot = first + tl.arange(0, K)
        ky, kx, m, there = token(key_slot, y0 - RY, x0 - RX, height, width, KX, KEYS)
        there = unpadded(mask, b * tokens + m, there, MASK)
        scores = product(query, gathered(k, m, k_n, there, D, W).T) * log_scale
        if BIAS:
            pointers = bias + (h * SY * SX + slot[:, None]) * LINE + key_slot[None, :]
            within = (slot < SY * SX)[:, None] & (key_slot < LINE)[None, :]
            scores += tl.load(pointers, mask=within, other=0.0).to(tl.float32) * 1.4426950408889634
        visible = there[None, :]
        if SY > WY:
            visible = visible & sees(y[:, None], ky[None, :], WY, RY)
        if SX > WX:
            visible = visible & sees(x[:, None], kx[None, :], WX, RX)
        scores = tl.where(visible, scores, float("-inf"))
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), head, n[:, None], m[None, :], dropout)
        acc, highest, total = attend(acc, highest, total, scores, gathered(v, m, v_n, there, D, W), factor, 1.0)

    k_rows += b * kr_b + h * kr_h
    v_rows += b * vr_b + h * vr_h
    for first in range(0, rows * work, KR):
        r = first + tl.arange(0, KR)
        there = r < rows
        shown = there
        if MASK_ROWS:
            shown = there & (tl.load(mask_rows + b * rows + r, mask=there, other=0) != 0)
        scores = product(query, gathered(k_rows, r, kr_n, there, D, W).T) * log_scale
        scores = tl.where(shown[None, :], scores, float("-inf"))
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), head, n[:, None], -1 - r[None, :], dropout)
        acc, highest, total = attend(acc, highest, total, scores, gathered(v_rows, r, vr_n, there, D, W), factor, 1.0)

    result, logarithm = finish(acc, highest, total, 1.0)
    store_lines(out + b * o_b + h * o_h, n, o_n, asks, result, D, W)
    if MASK:
        logarithm = tl.where(real, logarithm, float("inf"))  # so that padding has weights 0 in the backward pass
    tl.store(lse + head.to(tl.int64) * tokens + n, logarithm, mask=asks)


@Kernel
@triton.jit(do_not_specialize=SIZES)
def backward_queries(
    q, k, v, k_rows, v_rows, mask, mask_rows, bias, out, lse, seed, d_out, d_q, delta,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, kr_b, kr_h, kr_n, vr_b, vr_h, vr_n, o_b, o_h, o_n,
    do_b, do_h, do_n, dq_b, dq_h, dq_n,
    height, width, rows, heads, scale, dropout,
    WY: tl.constexpr, WX: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, LOCAL: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr, KR: tl.constexpr,
):  # fmt: skip
    """Gradients of queries; also writes delta, the sums of weights times their gradients, for the other kernels."""
    TILES: tl.constexpr = (SY * SX + T - 1) // T
    KX: tl.constexpr = SX + 2 * RX
    KEYS: tl.constexpr = (SY + 2 * RY) * KX
    LINE: tl.constexpr = (KEYS + 15) // 16 * 16  # of the bias
    across = tl.cdiv(width, SX)
    tile = tl.program_id(0) % TILES
    block = tl.program_id(0) // TILES % (tl.cdiv(height, SY) * across)
    head = tl.program_id(0) // TILES // (tl.cdiv(height, SY) * across)
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    y0, x0 = block // across * SY, block % across * SX
    slot = tile * T + tl.arange(0, T)
    y, x, n, asks = token(slot, y0, x0, height, width, SX, SY * SX)
    tokens = height * width
    dtype: tl.constexpr = q.dtype.element_ty
    log_scale = scale * 1.4426950408889634
    work = some(unpadded(mask, b * tokens + n, asks, MASK), MASK)

    query = gathered(q + b * q_b + h * q_h, n, q_n, asks, D, W)
    d_result = gathered(d_out + b * do_b + h * do_h, n, do_n, asks, D, W)
    result = gathered(out + b * o_b + h * o_h, n, o_n, asks, D, W)
    mean = tl.sum(d_result.to(tl.float32) * result.to(tl.float32), 1)
    place = head.to(tl.int64) * tokens + n
    tl.store(delta + place, mean, mask=asks)
    logarithm = tl.load(lse + place, mask=asks, other=0.0)
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    grad = tl.zeros([T, W], tl.float32)

    top = tl.maximum(RY - y0, 0) * KX // K * K
    for first in range(top, tl.minimum(SY + 2 * RY, height - y0 + RY) * KX * LOCAL * work, K):
        key_slot = first + tl.arange(0, K)
        ky, kx, m, there = token(key_slot, y0 - RY, x0 - RX, height, width, KX, KEYS)
        there = unpadded(mask, b * tokens + m, there, MASK)
        key = gathered(k, m, k_n, there, D, W)
        scores = product(query, key.T) * log_scale
        if BIAS:
            pointers = bias + (h * SY * SX + slot[:, None]) * LINE + key_slot[None, :]
            within = (slot < SY * SX)[:, None] & (key_slot < LINE)[None, :]
            scores += tl.load(pointers, mask=within, other=0.0).to(tl.float32) * 1.4426950408889634
        visible = there[None, :] & asks[:, None]
        if SY > WY:
            visible = visible & sees(y[:, None], ky[None, :], WY, RY)
        if SX > WX:
            visible = visible & sees(x[:, None], kx[None, :], WX, RX)
        weights = tl.where(visible, tl.exp2(scores - logarithm[:, None]), 0.0)
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), head, n[:, None], m[None, :], dropout)
        d_weights = product(d_result, gathered(v, m, v_n, there, D, W).T)
        d_scores = score_gradients(weights, d_weights, mean[:, None], factor)
        grad = tl.dot(d_scores.to(dtype), key, grad, input_precision="ieee")

    k_rows += b * kr_b + h * kr_h
    v_rows += b * vr_b + h * vr_h
    for first in range(0, rows * work, KR):
        r = first + tl.arange(0, KR)
        there = r < rows
        shown = there
        if MASK_ROWS:
            shown = there & (tl.load(mask_rows + b * rows + r, mask=there, other=0) != 0)
        key = gathered(k_rows, r, kr_n, there, D, W)
        scores = product(query, key.T) * log_scale
        weights = tl.where(shown[None, :] & asks[:, None], tl.exp2(scores - logarithm[:, None]), 0.0)
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), head, n[:, None], -1 - r[None, :], dropout)
        d_weights = product(d_result, gathered(v_rows, r, vr_n, there, D, W).T)
        d_scores = score_gradients(weights, d_weights, mean[:, None], factor)
        grad = tl.dot(d_scores.to(dtype), key, grad, input_precision="ieee")
    store_lines(d_q + b * dq_b + h * dq_h, n, dq_n, asks, grad * scale, D, W)


@Kernel
@triton.jit(do_not_specialize=SIZES)
def backward_keys(
    q, k, v, mask, bias, lse, delta, seed, d_out, d_k, d_v,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    height, width, rows, heads, scale, dropout,
    WY: tl.constexpr, WX: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
    MASK: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values. Scores are computed keys by queries, as the products need them."""
    TILES: tl.constexpr = (SY * SX + K - 1) // K
    QY: tl.constexpr = SY + (2 * RY + WY - 1) // WY * WY  # queries that see a block of keys, along both axes
    QX: tl.constexpr = SX + (2 * RX + WX - 1) // WX * WX
    CORNER_Y: tl.constexpr = RY - (SY if RY > 0 else 0)  # where the first block of keys starts
    CORNER_X: tl.constexpr = RX - (SX if RX > 0 else 0)
    LINE: tl.constexpr = (QY * QX + 15) // 16 * 16  # of the bias
    across = tl.cdiv(width - CORNER_X, SX)
    blocks = tl.cdiv(height - CORNER_Y, SY) * across
    tile = tl.program_id(0) % TILES
    block = tl.program_id(0) // TILES % blocks
    head = tl.program_id(0) // TILES // blocks
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    y0, x0 = CORNER_Y + block // across * SY, CORNER_X + block % across * SX
    key_slot = tile * K + tl.arange(0, K)
    ky, kx, m, there = token(key_slot, y0, x0, height, width, SX, SY * SX)
    tokens = height * width
    dtype: tl.constexpr = q.dtype.element_ty
    log_scale = scale * 1.4426950408889634

    shown = unpadded(mask, b * tokens + m, there, MASK)
    key = gathered(k + b * k_b + h * k_h, m, k_n, shown, D, W)
    value = gathered(v + b * v_b + h * v_h, m, v_n, shown, D, W)
    q += b * q_b + h * q_h
    d_out += b * do_b + h * do_h
    lse += head.to(tl.int64) * tokens
    delta += head.to(tl.int64) * tokens
    grad_k = tl.zeros([K, W], tl.float32)
    grad_v = tl.zeros([K, W], tl.float32)

    top = tl.maximum(RY - y0, 0) * QX // T * T
    for first in range(top, tl.minimum(QY, height - y0 + RY) * QX * some(shown, MASK), T):
        slot = first + tl.arange(0, T)
        y, x, n, asks = token(slot, y0 - RY, x0 - RX, height, width, QX, QY * QX)
        query = gathered(q, n, q_n, asks, D, W)
        scores = product(key, query.T) * log_scale  # [keys, queries]
        near = sees(y[None, :], ky[:, None], WY, RY) & sees(x[None, :], kx[:, None], WX, RX)
        if BIAS:
            pointers = bias + (h * SY * SX + key_slot[:, None]) * LINE + slot[None, :]
            within = (key_slot < SY * SX)[:, None] & (slot < LINE)[None, :]
            scores += tl.load(pointers, mask=within, other=0.0).to(tl.float32) * 1.4426950408889634
        logarithm = tl.load(lse + n, mask=asks, other=0.0)
        visible = near & shown[:, None] & asks[None, :]
        weights = tl.where(visible, tl.exp2(scores - logarithm[None, :]), 0.0)
        d_result = gathered(d_out, n, do_n, asks, D, W)
        factor = None
        kept = weights
        if DROPOUT:
            factor = factors(tl.load(seed), head, n[None, :], m[:, None], dropout)
            kept = weights * factor
        grad_v = tl.dot(kept.to(dtype), d_result, grad_v, input_precision="ieee")
        mean = tl.load(delta + n, mask=asks, other=0.0)
        d_scores = score_gradients(weights, product(value, d_result.T), mean[None, :], factor)
        grad_k = tl.dot(d_scores.to(dtype), query, grad_k, input_precision="ieee")
    store_lines(d_k + b * dk_b + h * dk_h, m, dk_n, there, grad_k * scale, D, W)
    store_lines(d_v + b * dv_b + h * dv_h, m, dv_n, there, grad_v, D, W)


@Kernel
@triton.jit(do_not_specialize=[*SIZES, "items", "workers"])
def backward_bias(
    q, k, v, mask, bias, lse, delta, seed, d_out, d_bias,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, do_b, do_h, do_n,
    height, width, rows, heads, scale, dropout, items, workers,
    WY: tl.constexpr, WX: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Gradients of the bias of a tile, summed over a worker's share of all blocks: [workers, heads, SY·SX, keys]."""
    TILES: tl.constexpr = (SY * SX + T - 1) // T
    KX: tl.constexpr = SX + 2 * RX
    KEYS: tl.constexpr = (SY + 2 * RY) * KX
    LINE: tl.constexpr = (KEYS + 15) // 16 * 16  # of the bias
    KEY_TILES: tl.constexpr = (KEYS + K - 1) // K
    across = tl.cdiv(width, SX)
    blocks = tl.cdiv(height, SY) * across
    slot = tl.program_id(0) % TILES * T + tl.arange(0, T)
    key_slot = tl.program_id(0) // TILES % KEY_TILES * K + tl.arange(0, K)
    h = (tl.program_id(0) // TILES // KEY_TILES % heads).to(tl.int64)
    worker = tl.program_id(0) // TILES // KEY_TILES // heads
    tokens = height * width
    log_scale = scale * 1.4426950408889634
    within = (slot < SY * SX)[:, None] & (key_slot < LINE)[None, :]
    entry = slot[:, None] * LINE + key_slot[None, :]
    bias_here = tl.load(bias + h * SY * SX * LINE + entry, mask=within, other=0.0).to(tl.float32)
    grad = tl.zeros([T, K], tl.float32)

    for item in range(worker, items, workers):
        b = (item // blocks).to(tl.int64)
        block = item % blocks
        y0, x0 = block // across * SY, block % across * SX
        y, x, n, asks = token(slot, y0, x0, height, width, SX, SY * SX)
        ky, kx, m, there = token(key_slot, y0 - RY, x0 - RX, height, width, KX, KEYS)
        there = unpadded(mask, b * tokens + m, there, MASK)
        query = gathered(q + b * q_b + h * q_h, n, q_n, asks, D, W)
        scores = product(query, gathered(k + b * k_b + h * k_h, m, k_n, there, D, W).T) * log_scale
        scores += bias_here * 1.4426950408889634
        visible = there[None, :] & asks[:, None]
        if SY > WY:
            visible = visible & sees(y[:, None], ky[None, :], WY, RY)
        if SX > WX:
            visible = visible & sees(x[:, None], kx[None, :], WX, RX)
        place = (b * heads + h) * tokens + n
        logarithm = tl.load(lse + place, mask=asks, other=0.0)
        mean = tl.load(delta + place, mask=asks, other=0.0)
        weights = tl.where(visible, tl.exp2(scores - logarithm[:, None]), 0.0)
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), (b * heads + h).to(tl.int32), n[:, None], m[None, :], dropout)
        d_result = gathered(d_out + b * do_b + h * do_h, n, do_n, asks, D, W)
        d_weights = product(d_result, gathered(v + b * v_b + h * v_h, m, v_n, there, D, W).T)
        grad += score_gradients(weights, d_weights, mean[:, None], factor)
    tl.store(d_bias + (worker * heads + h) * SY * SX * LINE + entry, grad, mask=within)


@Kernel
@triton.jit
def spread_bias(
    bias, out, entries, from_y, from_x,
    LY: tl.constexpr, LX: tl.constexpr, CY: tl.constexpr, CX: tl.constexpr, LINE: tl.constexpr,
    OFFSETS: tl.constexpr, SIGN: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """A bias over offsets, for lines and columns that are LY × LX and CY × CX places: [heads, LY·LX, LINE].

    from_y, from_x: by how much lines start after columns. SIGN is 1 where lines are queries, -1 where they are keys.
    """
    e = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    column = (e % LINE).to(tl.int32)
    line = (e // LINE % (LY * LX)).to(tl.int32)
    y = (line // LX - column // CX + from_y) * SIGN + OFFSETS // 2
    x = (line % LX - column % CX + from_x) * SIGN + OFFSETS // 2
    there = (column < CY * CX) & (y >= 0) & (y < OFFSETS) & (x >= 0) & (x < OFFSETS) & (e < entries)
    at = (e // (LINE * LY * LX) * OFFSETS + y) * OFFSETS + x
    tl.store(out + e, tl.load(bias + at, mask=there, other=0.0), mask=e < entries)


@Kernel
@triton.jit
def sum_bias(
    d_out, d_bias, entries,
    SY: tl.constexpr, SX: tl.constexpr, RY: tl.constexpr, RX: tl.constexpr, LINE: tl.constexpr,
    OFFSETS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The gradient of a bias over offsets from that of what spread_bias made of it for the queries of a block."""
    e = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)
    y = (e // OFFSETS % OFFSETS).to(tl.int32) - OFFSETS // 2  # the query's place less the key's
    x = (e % OFFSETS).to(tl.int32) - OFFSETS // 2
    h = e // (OFFSETS * OFFSETS)
    total = tl.zeros([T], tl.float32)
    for slot in range(SY * SX):
        ky, kx = slot // SX - y + RY, slot % SX - x + RX
        there = (ky >= 0) & (ky < SY + 2 * RY) & (kx >= 0) & (kx < SX + 2 * RX) & (e < entries)
        at = (h * (SY * SX) + slot) * LINE + ky * (SX + 2 * RX) + kx
        total += tl.load(d_out + at, mask=there, other=0.0)
    tl.store(d_bias + e, total, mask=e < entries)
