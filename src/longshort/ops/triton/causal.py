"""Fused kernels of the causal form: window, rows and Transformer-XL positions in one online softmax.

Query t sees the keys at places lowest(t) to t, counted from the first key there is, and the rows before seen(t). Rows
are handled as keys are, with seen(t) - 1 in the place of t: then the distance is in both cases the query's place less
the key's. Tiles of T keys are visited from the farthest to the nearest, c tiles before the queries. Those that all
queries see whole, most of them, go without masks; not so in `backward_queries`, where a second loop costs more than it
spares. q_content and q_position are the queries plus the two biases of relative positions: one addition before the
kernels costs less than registers in them.

T queries and keys of a tile, D head width, W the power of two that D is padded to.
"""

from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.kernel import Kernel
from longshort.ops.triton.positions import by_key, pack, pick, rotate, unpack
from longshort.ops.triton.softmax import (
    attend,
    factors,
    finish,
    key_gradients,
    lines,
    product,
    score_gradients,
    store_lines,
)

LENGTHS = ["queries", "keys", "rows", "start", "first_row"]  # a new length must not compile anew
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def lowest(t, start, earlier, WINDOW: tl.constexpr, SLIDING: tl.constexpr):
    """The first place that query t sees; `earlier` keys stand before that of the first query."""
    if SLIDING:
        return tl.maximum(t - WINDOW + 1 + earlier, 0)
    return tl.maximum(((start + t) // WINDOW - 1) * WINDOW - start + earlier, 0)


@triton.jit
def beyond(place, start, earlier, WINDOW: tl.constexpr, SLIDING: tl.constexpr):
    """The first query that no longer sees the key at a place."""
    x = place - earlier
    if SLIDING:
        return x + WINDOW
    return ((start + x) // WINDOW + 2) * WINDOW - start


@triton.jit
def seen(t, start, first_row, SEGMENT: tl.constexpr, RANK: tl.constexpr):
    """How many of the rows query t sees."""
    return (start + t) // SEGMENT * RANK - first_row


@triton.jit
def position_words(
    query, table, stride, first, length, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, EDGE: tl.constexpr
):
    """Products of queries with T lines of a table, from `first` on; zeros beyond its ends."""
    return pack(product(query, lines(table, first, length, stride, D, W, T, EDGE).T), query.dtype, T)


@triton.jit
def nearest_rows(t0, queries, rows, start, first_row, SEGMENT: tl.constexpr, RANK: tl.constexpr, T: tl.constexpr):
    """The number of the last tile of rows that the T queries from t0 on see; tile 0 holds those the first one sees."""
    last = seen(tl.minimum(t0 + T, queries) - 1, start, first_row, SEGMENT, RANK)
    between = last - seen(t0, start, first_row, SEGMENT, RANK)
    return tl.where(rows > 0, -(between // T), 1)  # without rows, not even tile 0


@triton.jit
def only_seen(scores, place, low, high):
    """Scores [T, K], -inf where a place [K] is not between low and high - 1 [T]."""
    above = (place[None, :] - low[:, None]).to(tl.uint32)  # what is below is very far above
    return tl.where(above < tl.maximum(high - low, 0).to(tl.uint32)[:, None], scores, float("-inf"))


@triton.jit
def numbers(place, ROWS: tl.constexpr, T: tl.constexpr):
    """What dropout calls the T keys from a place on; rows have the numbers -1, -2, ..."""
    number = place + tl.arange(0, T)
    return -1 - number if ROWS else number


@triton.jit
def tile_scores(
    query, position, key, table, stride, here, c, by, first, low, high, length, span, mask,
    MASK: tl.constexpr, POSITIONS: tl.constexpr, EDGE: tl.constexpr, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Scores of the tile of keys from `first` on, -inf where not seen; and the position words that the next one needs.

    low, high: the places that each query sees. here: position words of the distances from c·T on.
    """
    scores = product(query, key.T)
    nearer = here
    if POSITIONS:
        nearer = position_words(position, table, stride, (c - 1) * T, span, D, W, T, EDGE)
        scores += by_key(here, nearer, by, query.dtype, T)
    if EDGE:
        place = first + tl.arange(0, T)
        if MASK:
            real = tl.load(mask + place, mask=(place >= 0) & (place < length), other=0) != 0
            place = tl.where(real, place, -(1 << 30))
        scores = only_seen(scores, place, low, high)
    return scores, nearer


@triton.jit
def within(begin, end, count):
    """A range cut to 0 to count."""
    begin = tl.minimum(tl.maximum(begin, 0), count)
    return begin, tl.minimum(tl.maximum(end, begin), count)


@triton.jit
def steps_of(begin, end, count, WHOLE: tl.constexpr):
    """Of `count` steps, begin to end - 1 are at tiles that are seen whole: how many these are, or how many others."""
    return end - begin if WHOLE else count - (end - begin)


@triton.jit
def step_of(index, begin, end, WHOLE: tl.constexpr):
    """The index-th of the steps that steps_of counts."""
    return begin + index if WHOLE else index + tl.where(index >= begin, end - begin, 0)


@Kernel
@triton.jit(do_not_specialize=["queries"])
def add_biases(
    q, content_bias, position_bias, content, position, q_b, q_h, q_n, queries, heads,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Queries plus each of the two biases, as [B, N, H, D]."""
    tiles = tl.cdiv(queries, T)
    t = tl.program_id(0) // heads % tiles * T + tl.arange(0, T)
    b = (tl.program_id(0) // heads // tiles).to(tl.int64)
    h = (tl.program_id(0) % heads).to(tl.int64)
    d = tl.arange(0, W)
    inside = (t < queries)[:, None] & (d < D)[None, :]
    at = b * q_b + h * q_h + t.to(tl.int64)[:, None] * q_n + d[None, :]
    query = tl.load(q + at, mask=inside, other=0.0)
    at = ((b * queries + t)[:, None] * heads + h) * D + d[None, :]
    tl.store(content + at, query + tl.load(content_bias + h * D + d, mask=d < D, other=0.0)[None, :], mask=inside)
    tl.store(position + at, query + tl.load(position_bias + h * D + d, mask=d < D, other=0.0)[None, :], mask=inside)


@triton.jit
def attend_tiles(
    acc, highest, total, query, position, k, v, table, mask, seed, k_n, v_n, table_n,
    origin, steps, whole, nearest, by, low, high, length, span, head, t, scale, dropout,
    ROWS: tl.constexpr, MASK: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """The online softmax over tiles of keys, or of rows, from the one `steps` to the left to `nearest`.

    origin: the first place of tile 0. Tiles `whole` to 1 are seen whole. length, span: of keys and of the table.
    """
    here = tl.zeros([T, T], tl.float32)
    if POSITIONS:
        here = position_words(position, table, table_n, steps * T, span, D, W, T, True)
    for part in tl.static_range(3):  # the farthest tiles, those seen whole, the nearest
        begin = steps if part == 0 else (whole if part == 1 else 0)
        end = whole if part == 0 else (0 if part == 1 else nearest - 1)
        for step in range(begin - end):
            c = begin - step
            place = origin - c * T
            key = lines(k, place, length, k_n, D, W, T, part != 1)
            scores, here = tile_scores(
                query, position, key, table, table_n, here, c, by, place, low, high, length, span, mask,
                MASK, POSITIONS, part != 1, D, W, T,
            )  # fmt: skip
            factor = None
            if DROPOUT:
                factor = factors(tl.load(seed), head, t[:, None], numbers(place, ROWS, T)[None, :], dropout)
            value = lines(v, place, length, v_n, D, W, T, part != 1)
            acc, highest, total = attend(acc, highest, total, scores, value, factor, scale * LOG2E)
    return acc, highest, total


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def forward(
    q, k, v, k_rows, v_rows, mask, mask_rows, q_content, q_position, near, far, out, lse, seed,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, kr_b, kr_h, kr_n, vr_b, vr_h, vr_n, o_b, o_h, o_n,
    c_b, c_h, c_n, near_h, near_n, far_h, far_n,
    queries, keys, rows, start, first_row, heads, scale, dropout,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, SEGMENT: tl.constexpr, RANK: tl.constexpr, SLIDING: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(queries, T)
    t0 = (tiles - 1 - tl.program_id(0) % tiles) * T  # the last ones see the most rows: they go first
    head = tl.program_id(0) // tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = tl.arange(0, T)
    t = t0 + i
    earlier = keys - queries
    query = lines(q + b * q_b + h * q_h, t0, queries, q_n, D, W, T, True)
    content = query
    position = query
    if POSITIONS:
        content = lines(q_content + b * c_b + h * c_h, t0, queries, c_n, D, W, T, True)
        position = lines(q_position + b * c_b + h * c_h, t0, queries, c_n, D, W, T, True)
    acc = tl.zeros([T, W], tl.float32)
    highest = tl.full([T], float("-inf"), tl.float32)
    total = tl.zeros([T], tl.float32)

    first = lowest(t0, start, earlier, WINDOW, SLIDING)
    whole = (t0 + earlier - lowest(t0 + T - 1, start, earlier, WINDOW, SLIDING)) // T
    whole = tl.where((t0 + T <= queries) & (not MASK), tl.maximum(whole, 0), 0)
    acc, highest, total = attend_tiles(
        acc, highest, total, content, position, k + b * k_b + h * k_h, v + b * v_b + h * v_h, near + h * near_h,
        mask + b * keys, seed, k_n, v_n, near_n, t0 + earlier, tl.cdiv(t0 + earlier - first, T), whole, 0, i,
        lowest(t, start, earlier, WINDOW, SLIDING), tl.where(t < queries, t + earlier + 1, 0),
        keys, SPAN, head, t, scale, dropout, False, MASK, POSITIONS, DROPOUT, D, W, T,
    )  # fmt: skip

    limit, limit0 = seen(t, start, first_row, SEGMENT, RANK), seen(t0, start, first_row, SEGMENT, RANK)
    whole = tl.where((t0 + T <= queries) & (not MASK_ROWS), tl.maximum(limit0 - 1, 0) // T, 0)
    acc, highest, total = attend_tiles(
        acc, highest, total, query, query, k_rows + b * kr_b + h * kr_h, v_rows + b * vr_b + h * vr_h, far + h * far_h,
        mask_rows + b * rows, seed, kr_n, vr_n, far_n, limit0 - 1, tl.cdiv(tl.maximum(limit0 - 1, 0), T), whole,
        nearest_rows(t0, queries, rows, start, first_row, SEGMENT, RANK, T), limit - limit0,
        limit * 0, tl.where(t < queries, tl.minimum(limit, rows), 0),
        rows, rows, head, t, scale, dropout, True, MASK_ROWS, POSITIONS, DROPOUT, D, W, T,
    )  # fmt: skip

    result, logarithm = finish(acc, highest, total, scale * LOG2E)
    store_lines(out + b * o_b + h * o_h, t, o_n, t < queries, result, D, W)
    tl.store(lse + head.to(tl.int64) * queries + t, logarithm, mask=t < queries)


@triton.jit
def store_distances(base, c, blocks, words, dtype: tl.constexpr, T: tl.constexpr):
    """Gradients of a tile by distance, into the columns from c·T on, if there are, of lines of `blocks` times T."""
    i = tl.arange(0, T)
    pointers = base + i[:, None] * (blocks * T) + (c * T + i)[None, :]
    tl.store(pointers, unpack(words, dtype, T), mask=c + i[:, None] * 0 < blocks)


@triton.jit
def query_gradients(
    grad, query, position, d_result, logarithm, mean, k, v, table, d_scores_by_distance, mask, seed, k_n, v_n, table_n,
    origin, steps, nearest, blocks, by, low, high, length, span, head, t, scale, dropout,
    ROWS: tl.constexpr, MASK: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of the queries what the tiles give, see attend_tiles; up to the scale.

    Also writes the gradients of the scores by distance, [T, blocks·T].
    """
    dtype: tl.constexpr = query.dtype
    here = tl.zeros([T, T], tl.float32)
    before = pack(tl.zeros([T, T], tl.float32), dtype, T)  # what the last tile leaves for T distances nearer
    if POSITIONS:
        here = position_words(position, table, table_n, steps * T, span, D, W, T, True)
        for c in range(steps + 1, blocks):
            store_distances(d_scores_by_distance, c, blocks, before, dtype, T)
    for step in range(steps - nearest + 1):
        c = steps - step
        place = origin - c * T
        key = lines(k, place, length, k_n, D, W, T, True)
        scores, here = tile_scores(
            query, position, key, table, table_n, here, c, by, place, low, high, length, span, mask,
            MASK, POSITIONS, True, D, W, T,
        )  # fmt: skip
        weights = tl.exp2(scores * (scale * LOG2E) - logarithm[:, None])
        factor = None
        if DROPOUT:
            factor = factors(tl.load(seed), head, t[:, None], numbers(place, ROWS, T)[None, :], dropout)
        d_weights = product(d_result, lines(v, place, length, v_n, D, W, T, True).T)
        d_scores = score_gradients(weights, d_weights, mean[:, None], factor)
        grad = tl.dot(d_scores.to(dtype), key, grad, input_precision="ieee")
        if POSITIONS:
            moved = rotate(pack(d_scores, dtype, T), by, T)
            found = pick(moved, before, by, T)
            before = moved
            store_distances(d_scores_by_distance, c, blocks, found, dtype, T)
            of_table = lines(table, c * T, span, table_n, D, W, T, True)
            grad = tl.dot(unpack(found, dtype, T), of_table, grad, input_precision="ieee")
    return grad


@Kernel
@triton.jit(do_not_specialize=[*LENGTHS, "tile0", "tiles", "near_blocks", "far_blocks"])
def backward_queries(
    q, k, v, k_rows, v_rows, mask, mask_rows, q_content, q_position, near, far, out, lse, seed,
    d_out, d_q, delta, d_near, d_far, d_biases,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, kr_b, kr_h, kr_n, vr_b, vr_h, vr_n, o_b, o_h, o_n,
    c_b, c_h, c_n, near_h, near_n, far_h, far_n, do_b, do_h, do_n, dq_b, dq_h, dq_n,
    queries, keys, rows, start, first_row, heads, heads_in_all, scale, dropout, tile0, tiles, near_blocks, far_blocks,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, SEGMENT: tl.constexpr, RANK: tl.constexpr, SLIDING: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries of `tiles` tiles from tile0 on.

    Also writes delta, the sums of weights times their gradients, for the other kernels; and, for the tables of
    positions, the gradients of the scores by distance, [B, H, tiles·T, blocks·T], and each tile's share of the sum of
    those of the two biases, [tiles in all, B, H, D].
    """
    tile = tiles - 1 - tl.program_id(0) % tiles
    t0 = (tile0 + tile) * T
    head = tl.program_id(0) // tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = tl.arange(0, T)
    t = t0 + i
    earlier = keys - queries
    query = lines(q + b * q_b + h * q_h, t0, queries, q_n, D, W, T, True)
    d_result = lines(d_out + b * do_b + h * do_h, t0, queries, do_n, D, W, T, True)
    result = lines(out + b * o_b + h * o_h, t0, queries, o_n, D, W, T, True)
    mean = tl.sum(d_result.to(tl.float32) * result.to(tl.float32), 1)
    at = head.to(tl.int64) * queries + t
    tl.store(delta + at, mean, mask=t < queries)
    logarithm = tl.load(lse + at, mask=t < queries, other=0.0)
    content = query
    position = query
    if POSITIONS:
        content = lines(q_content + b * c_b + h * c_h, t0, queries, c_n, D, W, T, True)
        position = lines(q_position + b * c_b + h * c_h, t0, queries, c_n, D, W, T, True)
        d_near += (head.to(tl.int64) * tiles + tile) * near_blocks * (T * T)
        d_far += (head.to(tl.int64) * tiles + tile) * far_blocks * (T * T)
    grad = tl.zeros([T, W], tl.float32)

    first = lowest(t0, start, earlier, WINDOW, SLIDING)
    grad = query_gradients(
        grad, content, position, d_result, logarithm, mean,
        k + b * k_b + h * k_h, v + b * v_b + h * v_h, near + h * near_h, d_near, mask + b * keys, seed,
        k_n, v_n, near_n,
        t0 + earlier, tl.cdiv(t0 + earlier - first, T), 0, near_blocks, i,
        lowest(t, start, earlier, WINDOW, SLIDING), tl.where(t < queries, t + earlier + 1, 0),
        keys, SPAN, head, t, scale, dropout, False, MASK, POSITIONS, DROPOUT, D, W, T,
    )  # fmt: skip
    if POSITIONS:
        d = tl.arange(0, W)
        share = d_biases + ((tile0 + tile).to(tl.int64) * heads_in_all + head) * D
        tl.store(share + d, tl.sum(grad, 0), mask=d < D)

    limit, limit0 = seen(t, start, first_row, SEGMENT, RANK), seen(t0, start, first_row, SEGMENT, RANK)
    grad = query_gradients(
        grad, query, query, d_result, logarithm, mean,
        k_rows + b * kr_b + h * kr_h, v_rows + b * vr_b + h * vr_h, far + h * far_h, d_far,
        mask_rows + b * rows, seed, kr_n, vr_n, far_n, limit0 - 1, tl.cdiv(tl.maximum(limit0 - 1, 0), T),
        nearest_rows(t0, queries, rows, start, first_row, SEGMENT, RANK, T), far_blocks, limit - limit0,
        limit * 0, tl.where(t < queries, tl.minimum(limit, rows), 0),
        rows, rows, head, t, scale, dropout, True, MASK_ROWS, POSITIONS, DROPOUT, D, W, T,
    )  # fmt: skip
    store_lines(d_q + b * dq_b + h * dq_h, t, dq_n, t < queries, grad * scale, D, W)


@Kernel
@triton.jit(do_not_specialize=LENGTHS)
def backward_keys(
    q_content, k, v, mask, q_position, near, lse, delta, seed, d_out, d_k, d_v,
    c_b, c_h, c_n, k_b, k_h, k_n, v_b, v_h, v_n, near_h, near_n, do_b, do_h, do_n,
    dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    queries, keys, start, heads, scale, dropout,
    WINDOW: tl.constexpr, SPAN: tl.constexpr, SLIDING: tl.constexpr,
    MASK: tl.constexpr, POSITIONS: tl.constexpr, DROPOUT: tl.constexpr,
    D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values."""
    tiles = tl.cdiv(keys, T)
    first = tl.program_id(0) % tiles * T
    head = tl.program_id(0) // tiles
    b, h = (head // heads).to(tl.int64), (head % heads).to(tl.int64)
    i = tl.arange(0, T)
    place = first + i
    earlier = keys - queries
    key = lines(k + b * k_b + h * k_h, first, keys, k_n, D, W, T, True)
    value = lines(v + b * v_b + h * v_h, first, keys, v_n, D, W, T, True)
    q_content += b * c_b + h * c_h
    q_position += b * c_b + h * c_h
    d_out += b * do_b + h * do_h
    lse += head.to(tl.int64) * queries
    delta += head.to(tl.int64) * queries
    near += h * near_h
    grad_k = tl.zeros([T, W], tl.float32)
    grad_v = tl.zeros([T, W], tl.float32)

    nearest = tl.maximum(earlier - first, 0) // T
    last = tl.minimum(beyond(first + T - 1, start, earlier, WINDOW, SLIDING), queries)
    count = tl.maximum(tl.cdiv(tl.maximum(last - first + earlier, 0), T) - nearest, 0)
    unseen_from = tl.minimum(beyond(first, start, earlier, WINDOW, SLIDING), queries)
    whole = (unseen_from - first + earlier) // T - nearest  # before that step, all queries see all keys
    whole = tl.where((first + T <= keys) & (not MASK), whole, 0)
    begin, end = within(tl.maximum(tl.cdiv(earlier - first, T), 1) - nearest, whole, count)
    for WHOLE in tl.static_range(2):
        for index in range(steps_of(begin, end, count, WHOLE)):
            c = nearest + step_of(index, begin, end, WHOLE)
            t0 = first - earlier + c * T
            t = t0 + i
            content = lines(q_content, t0, queries, c_n, D, W, T, not WHOLE)
            d_result = lines(d_out, t0, queries, do_n, D, W, T, not WHOLE)
            asks = (t >= 0) & (t < queries)
            low = tl.where(asks, lowest(t, start, earlier, WINDOW, SLIDING), keys)
            position = content
            here = tl.zeros([T, T], tl.float32)
            if POSITIONS:
                position = lines(q_position, t0, queries, c_n, D, W, T, not WHOLE)
                here = position_words(position, near, near_n, c * T, SPAN, D, W, T, True)
            scores, _ = tile_scores(
                content, position, key, near, near_n, here, c, i, first, low, t + earlier + 1, keys, SPAN,
                mask + b * keys, MASK, POSITIONS, not WHOLE, D, W, T,
            )  # fmt: skip
            logarithm = tl.load(lse + t, mask=asks, other=0.0)
            mean = tl.load(delta + t, mask=asks, other=0.0)
            weights = tl.exp2(scores * (scale * LOG2E) - logarithm[:, None])
            factor = None
            if DROPOUT:
                factor = factors(tl.load(seed), head, t[:, None], place[None, :], dropout)
            grad_k, grad_v = key_gradients(grad_k, grad_v, weights, content, d_result, value, mean, factor)
    store_lines(d_k + b * dk_b + h * dk_h, place, dk_n, place < keys, grad_k * scale, D, W)
    store_lines(d_v + b * dv_b + h * dv_h, place, dv_n, place < keys, grad_v, D, W)


@Kernel
@triton.jit(do_not_specialize=["queries", "tile0", "tiles", "blocks", "lines_in_all", "splits"])
def backward_tables(
    q, d_scores, d_table, sums, q_b, q_h, q_n, queries, batch, heads, tile0, tiles, blocks, lines_in_all, splits,
    SUMS: tl.constexpr, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Adds what the scores' gradients by distance [B, H, tiles·T, blocks·T] give to a table; with SUMS, their sums too.

    The table's: their products with the queries of `tiles` tiles from tile0 on. Each split of these adds to its own
    share, [splits, H, lines_in_all, D] and [splits, H, lines_in_all].
    """
    block = tl.program_id(0) % blocks
    h = (tl.program_id(0) // blocks % heads).to(tl.int64)
    split = tl.program_id(0) // blocks // heads
    i, d = tl.arange(0, T), tl.arange(0, W)
    line = (split * heads + h) * lines_in_all + block * T + i
    pointers = d_table + line[:, None] * D + d[None, :]
    inside = (i[:, None] >= 0) & (d < D)[None, :]
    grad = tl.load(pointers, mask=inside, other=0.0)
    total = tl.zeros([T, T], tl.float32)
    steps = batch * tiles
    share = tl.cdiv(steps, splits)
    for step in range(split * share, tl.minimum((split + 1) * share, steps)):
        b, tile = tl.cast(step // tiles, tl.int64), step % tiles
        query = lines(q + b * q_b + h * q_h, (tile0 + tile) * T, queries, q_n, D, W, T, True)
        first = d_scores + ((b * heads + h) * tiles + tile) * blocks * (T * T)
        found = tl.load(first + i[:, None] * (blocks * T) + (block * T + i)[None, :])
        grad = tl.dot(found.T, query, grad, input_precision="ieee")
        if SUMS:
            total += found.to(tl.float32)
    tl.store(pointers, grad, mask=inside)
    if SUMS:
        tl.store(sums + line, tl.load(sums + line) + tl.sum(total, 0))
