"""What every attention kernel does with a tile: load it, add it to the online softmax, drop weights.

T queries of a tile, K keys of a tile, D head width, W the power of two that D is padded to.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gathered(base, index, stride, inside, D: tl.constexpr, W: tl.constexpr):
    """Lines `index` of a matrix [any, D] as [T, W]; zeros where not inside, and beyond D."""
    d = tl.arange(0, W)
    pointers = base + index.to(tl.int64)[:, None] * stride + d[None, :]
    if D == W:
        return tl.load(pointers, mask=inside[:, None], other=0.0)
    return tl.load(pointers, mask=inside[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def lines(base, first, length, stride, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, EDGE: tl.constexpr):
    """T lines of a matrix [length, D] from `first` on, as [T, W]; with EDGE zeros where there are none."""
    i, d = tl.arange(0, T), tl.arange(0, W)
    pointers = base + tl.cast(first, tl.int64) * stride + (i[:, None] * stride + d[None, :])
    if EDGE:
        inside = (first + i >= 0) & (first + i < length)
        return tl.load(pointers, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    if D == W:
        return tl.load(pointers)
    return tl.load(pointers, mask=(d < D)[None, :], other=0.0)


@triton.jit
def store_lines(base, index, stride, inside, x, D: tl.constexpr, W: tl.constexpr):
    d = tl.arange(0, W)
    pointers = base + index.to(tl.int64)[:, None] * stride + d[None, :]
    if D == W:
        tl.store(pointers, x.to(base.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(pointers, x.to(base.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])


@triton.jit
def product(a, b):
    """a b in float32; of float32 without tf32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def factors(seed, head, query, key, dropout):
    """Dropout's factors, 0 or 1 / (1 - dropout), of the weights between `query` [T, 1] and `key` [1, K].

    A function of the seed and of who looks at whom, so that the backward pass finds them again in any order. Rows have
    the numbers -1, -2, ...
    """
    zero = (query + key) * 0
    random, _, _, _ = tl.philox(seed, query + zero, key + zero, head + zero, zero)
    keep = tl.uint_to_uniform_float(random) >= dropout
    return tl.where(keep, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def attend(acc, highest, total, scores, v, factor, scale):
    """One step of the online softmax, to base 2, of scores [T, K] (-inf where not seen) times scale; values [K, W].

    acc, highest, total: the weighted sum, the highest score and the sum of weights so far. factor: dropout's, or None.
    """
    new = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(new == float("-inf"), 0.0, new)  # a query that has seen nothing yet
    weights = tl.exp2(scores * scale - (base * scale)[:, None])
    shrink = tl.exp2((highest - base) * scale)
    total = total * shrink + tl.sum(weights, 1)
    if factor is not None:
        weights = weights * factor
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, new, total


@triton.jit
def finish(acc, highest, total, scale):
    """The output, and the logarithm to base 2 of the sum of weights; both 0 for a query that saw nothing."""
    empty = total == 0.0
    out = acc / tl.where(empty, 1.0, total)[:, None]
    return out, tl.where(empty, 0.0, highest * scale + tl.log2(tl.where(empty, 1.0, total)))


@triton.jit
def score_gradients(weights, d_weights, delta, factor):
    """Gradients of scores times their scale, from those of the weights: W (dW - sum(W dW)), dropout's factor in dW."""
    if factor is not None:
        d_weights = d_weights * factor
    return weights * (d_weights - delta)


@triton.jit
def key_gradients(grad_k, grad_v, weights, query, d_result, value, mean, factor):
    """Adds to the gradients of keys, up to the scale, and of values [K, W] what queries with these weights give."""
    kept = weights
    if factor is not None:
        kept = weights * factor
    grad_v = tl.dot(kept.to(query.dtype).T, d_result, grad_v, input_precision="ieee")
    d_scores = score_gradients(weights, product(d_result, value.T), mean[:, None], factor)
    return tl.dot(d_scores.to(query.dtype).T, query, grad_k, input_precision="ieee"), grad_v
