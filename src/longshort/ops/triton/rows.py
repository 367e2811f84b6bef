"""Gradients of the global rows, for all geometries: every query may see them, so queries are split among programs.

T queries of a tile, K rows of a tile, D head width, W the power of two that D is padded to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.causal import LENGTHS, LOG2E, only_seen, position_words, seen, step_of, steps_of, within
from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.positions import by_key
from longshort.ops.triton.softmax import factors, key_gradients, lines, product, store_lines


@Kernel
@triton.jit(do_not_specialize=[*LENGTHS, "splits"])
def backward_rows(
    q, k_rows, v_rows, mask_rows, far, lse, delta, seed, d_out, d_k, d_v,
    q_b, q_h, q_n, kr_b, kr_h, kr_n, vr_b, vr_h, vr_n, far_h, far_n, do_b, do_h, do_n,
    queries, rows, start, first_row, heads, heads_in_all, scale, dropout, splits,
    SEGMENT: tl.constexpr, RANK: tl.constexpr, CAUSAL: tl.constexpr,
    MASK_ROWS: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Each split's share of the gradients [splits, heads_in_all, rows, D]."""
    tiles = tl.cdiv(rows, K)
    tile = tl.program_id(0) % tiles  # the first ones are seen by most queries
    split = tl.program_id(0) // tiles % splits
    head = tl.program_id(0) // tiles // splits
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    r0 = tile * K
    r = r0 + tl.arange(0, K)
    key = lines(k_rows + b * kr_b + h * kr_h, r0, rows, kr_n, D, W, K, True)
    value = lines(v_rows + b * vr_b + h * vr_h, r0, rows, vr_n, D, W, K, True)
    there = r < rows
    if MASK_ROWS:
        there = there & (tl.load(mask_rows + b * rows + r, mask=there, other=0) != 0)
    place = tl.where(there, r, -(1 << 30))
    q += b * q_b + h * q_h
    d_out += b * do_b + h * do_h
    lse += head.to(tl.int64) * queries
    delta += head.to(tl.int64) * queries
    if POSITIONS:
        far += h * far_h
    grad_k = tl.zeros([K, W], tl.float32)
    grad_v = tl.zeros([K, W], tl.float32)

    first = r0 * 0
    whole = r0 * 0  # the first step at which all queries see all rows of the tile
    if CAUSAL:  # from the first query that sees the first row of the tile on
        first = tl.maximum(((first_row + r0) // RANK + 1) * SEGMENT - start, 0)
        whole = tl.cdiv(((first_row + r0 + K - 1) // RANK + 1) * SEGMENT - start - first, T)
    whole = tl.where((r0 + K <= rows) & (not MASK_ROWS), whole, queries)
    steps = tl.cdiv(tl.maximum(queries - first, 0), T)
    share = tl.cdiv(steps, splits)
    step0 = split * share
    count = tl.maximum(tl.minimum(share, steps - step0), 0)
    begin, end = within(whole - step0, (queries - first) // T - step0, count)
    for WHOLE in tl.static_range(2):
        for index in range(steps_of(begin, end, count, WHOLE)):
            t0 = first + (step0 + step_of(index, begin, end, WHOLE)) * T
            t = t0 + tl.arange(0, T)
            asks = t < queries
            query = lines(q, t0, queries, q_n, D, W, T, not WHOLE)
            d_result = lines(d_out, t0, queries, do_n, D, W, T, not WHOLE)
            scores = product(query, key.T)
            high = tl.where(asks, rows, 0)
            if CAUSAL:
                limit = seen(t, start, first_row, SEGMENT, RANK)
                if POSITIONS:
                    limit0 = seen(t0, start, first_row, SEGMENT, RANK)
                    here = position_words(query, far, far_n, limit0 - 1 - r0, rows, D, W, T, True)
                    nearer = position_words(query, far, far_n, limit0 - 1 - r0 - T, rows, D, W, T, True)
                    scores += by_key(here, nearer, limit - limit0, query.dtype, T)
                high = tl.where(asks, limit, 0)
            if not WHOLE:
                scores = only_seen(scores, place, high * 0, high)
            logarithm = tl.load(lse + t, mask=asks, other=0.0)
            mean = tl.load(delta + t, mask=asks, other=0.0)
            weights = tl.exp2(scores * (scale * LOG2E) - logarithm[:, None])
            factor = None
            if DROPOUT:
                factor = factors(tl.load(seed), head, t[:, None], -1 - r[None, :], dropout)
            grad_k, grad_v = key_gradients(grad_k, grad_v, weights, query, d_result, value, mean, factor)
    line = (split * heads_in_all + head).to(tl.int64) * rows
    store_lines(d_k + line * D, r, D, r < rows, grad_k * scale, D, W)
    store_lines(d_v + line * D, r, D, r < rows, grad_v, D, W)
