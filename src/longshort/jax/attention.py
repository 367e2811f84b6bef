"""Long-short attention as modules of Flax (NNX), with the names and the mathematics of the PyTorch ones.

B batch, N tokens, C width, H heads, D head width, R rank, G global tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx
from jax import Array, lax

from longshort.geometry import Causal, Segments, Tiles
from longshort.jax.ops import (
    Implementation,
    RelativePositions,
    check_mask,
    dynamic_projection,
    long_short_attention,
)


def linear(inputs: int, outputs: int, *, bias: bool = True, dtype: Any = None, rngs: nnx.Rngs) -> nnx.Linear:
    """Started as PyTorch starts its own: evenly within ± 1 / √inputs."""

    def start(key: Array, shape: tuple[int, ...], kind: Any = jnp.float32, *unused: Any, **unused_too: Any) -> Array:
        return jax.random.uniform(key, shape, kind, -(inputs**-0.5), inputs**-0.5)

    return nnx.Linear(
        inputs,
        outputs,
        use_bias=bias,
        dtype=dtype,
        param_dtype=jnp.float32,
        kernel_init=start,
        bias_init=start,
        rngs=rngs,
    )


def layer_norm(width: int, *, eps: float = 1e-5, dtype: Any = None, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(width, epsilon=eps, use_fast_variance=False, dtype=dtype, rngs=rngs)


def drop(rate: float, rngs: nnx.Rngs) -> nnx.Dropout:
    """Which needs no random numbers where nothing is dropped."""
    return nnx.Dropout(rate, rngs=rngs if rate else None)


class DualLN(nnx.Module):
    """`local` is LN_L and `global_` is LN_G; each spans all heads and is shared by keys and values."""

    def __init__(
        self, width: int, *, enabled: bool = True, eps: float = 1e-5, dtype: Any = None, rngs: nnx.Rngs
    ) -> None:
        self.local = layer_norm(width, eps=eps, dtype=dtype, rngs=rngs) if enabled else same
        self.global_ = layer_norm(width, eps=eps, dtype=dtype, rngs=rngs) if enabled else same


def same(x: Array) -> Array:
    return x


class Projections(nnx.Module):
    """What every long-short layer has: the projections to queries, keys, values, row logits and output, and DualLN."""

    def __init__(
        self,
        width: int,
        heads: int,
        rank: int,
        bias: bool,
        dropout: float,
        dual_norm: bool,
        eps: float,
        impl: Implementation,
        dtype: Any,
        rngs: nnx.Rngs,
    ) -> None:
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        if rank < 0:
            raise ValueError(f"rank must not be negative, got {rank}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.width, self.heads, self.rank, self.impl, self.dtype = width, heads, rank, impl, dtype
        self.query, self.key, self.value, self.out = (
            linear(width, width, bias=bias, dtype=dtype, rngs=rngs) for _ in range(4)
        )
        self.rows = linear(width, heads * rank, dtype=dtype, rngs=rngs)
        self.norm = DualLN(width, enabled=dual_norm, eps=eps, dtype=dtype, rngs=rngs)
        self.dropout, self.deterministic = dropout, False  # train() and eval() of a model set the second
        self.rngs = rngs.dropout.fork() if dropout else None  # no two layers share one

    def split(self, x: Array) -> Array:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads)

    def merge(self, x: Array) -> Array:
        return rearrange(x, "b h n d -> b n (h d)")

    def keys_and_values(self, x: Array) -> tuple[Array, Array]:
        k, v = (self.split(self.norm.local(project(x))) for project in (self.key, self.value))
        return k, v

    def normalise_rows(self, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        """LN_G over all heads together."""
        k, v = (self.split(self.norm.global_(self.merge(t))) for t in rows)
        return k, v

    def attend(self, q: Array, k: Array, v: Array, k_global: Array, v_global: Array, **how: Any) -> Array:
        """The operation, with the layer's dropout."""
        if self.rngs is not None and not self.deterministic:
            how |= dict(dropout=self.dropout, rng=self.rngs())
        return long_short_attention(q, k, v, k_global, v_global, impl=self.impl, **how)

    def check_input(self, x: Array) -> None:
        if x.ndim != 3 or x.shape[2] != self.width or x.shape[1] < 1:
            raise ValueError(f"x must be [batch, at least 1 token, width {self.width}], got {x.shape}")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"x must be of a floating type, got {x.dtype}")


class LongShortAttention(Projections):
    """Bidirectional attention over a sequence of any length, linear in it.

    attention = LongShortAttention(width=256, heads=8, window=64, rank=32, rngs=nnx.Rngs(0))
    y = attention(x, mask)      # x: [B, N, 256]; mask: [B, N] bool, True on real tokens
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        rank: int,
        bias: bool = True,
        dropout: float = 0.0,
        global_tokens: int = 0,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(width, heads, rank, bias, dropout, dual_norm, eps, impl, dtype, rngs)
        check_sizes(window, rank, global_tokens)
        self.geometry, self.global_tokens = Segments(window), global_tokens

    def __call__(self, x: Array, mask: Array | None = None, count: int | None = None) -> Array:
        """count: the first so many tokens' output is wanted alone; of global tokens it costs less than all."""
        check_count(count, x)
        y = attend(self, x, mask, self.geometry, others=count is None or count > self.global_tokens)
        return y if count is None else y[:, :count]


class GridLongShortAttention(Projections):
    """Attention over the tokens of an image of any height and width, row by row; linear in their number.

    attention = GridLongShortAttention(width=96, heads=3, window=7, rank=8, rngs=nnx.Rngs(0))
    y = attention(x, size=(56, 40))      # x: [B, 56 · 40, 96]
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        rank: int,
        bias: bool = True,
        relative_bias: bool = False,
        dropout: float = 0.0,
        global_tokens: int = 0,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(width, heads, rank, bias, dropout, dual_norm, eps, impl, dtype, rngs)
        check_sizes(window, rank, global_tokens)
        self.window, self.global_tokens = window, global_tokens
        offsets = Tiles(window, 1, 1).offsets
        if relative_bias and not offsets:
            raise ValueError("relative_bias is for local scores, but window is 0")
        self.relative_bias = nnx.Param(jnp.zeros((heads, offsets, offsets))) if relative_bias else None

    def __call__(self, x: Array, size: tuple[int, int], mask: Array | None = None) -> Array:
        if len(size) != 2:
            raise ValueError(f"size must be (height, width), got {size}")
        if x.ndim == 3 and x.shape[1] != self.global_tokens + size[0] * size[1]:
            raise ValueError(f"x has {x.shape[1]} tokens, but {self.global_tokens} global ones and a grid of {size}")
        bias = None if self.relative_bias is None else self.relative_bias[...]
        return attend(self, x, mask, Tiles(self.window, *size), bias=bias)


def check_sizes(window: int, rank: int, global_tokens: int) -> None:
    if window == 0 and rank == 0:
        raise ValueError("window and rank are both 0: nothing to attend to")
    if global_tokens < 0:
        raise ValueError(f"global_tokens must not be negative, got {global_tokens}")


def check_count(count: int | None, x: Array) -> None:
    if count is not None and not 1 <= count <= x.shape[1]:
        raise ValueError(f"count must be from 1 to the {x.shape[1]} tokens of x, got {count}")


def attend(
    layer: LongShortAttention | GridLongShortAttention,
    x: Array,
    mask: Array | None,
    geometry: Segments | Tiles,
    bias: Array | None = None,
    others: bool = True,
) -> Array:
    """The layer that sequences and grids share. x: [B, G + N, C], global tokens first.

    others: whether the output of tokens that are not global is wanted.
    """
    layer.check_input(x)
    check_mask("mask", mask, *x.shape[:2])
    first = layer.global_tokens
    if x.shape[1] <= first:
        raise ValueError(f"x has {x.shape[1]} tokens, of which {first} are global: none is left")
    if mask is not None:
        x = jnp.where(mask[..., None], x, 0)  # whatever stands in the padding, NaN included, reaches no one
    q, (k, v) = layer.split(layer.query(x)), layer.keys_and_values(x)
    mask_rest = None if mask is None else mask[:, first:]
    rows = dynamic_projection(layer.rows(x[:, first:]), k[:, :, first:], v[:, :, first:], mask=mask_rest)
    k_rows, v_rows = layer.normalise_rows(rows)
    y = layer.attend(
        q[:, :, first:],
        k[:, :, first:],
        v[:, :, first:],
        jnp.concatenate([k[:, :, :first], k_rows], axis=2),
        jnp.concatenate([v[:, :, :first], v_rows], axis=2),
        geometry=geometry,
        mask=mask_rest,
        mask_global=None if mask is None else jnp.pad(mask[:, :first], ((0, 0), (0, layer.rank)), constant_values=True),
        bias=bias,
    )
    if first:  # they see each other, and as keys and values both what the other tokens came to
        mine = layer.attend(
            q[:, :, :first],
            k[:, :, :first],
            v[:, :, :first],
            jnp.concatenate([k[:, :, :first], y], axis=2),
            jnp.concatenate([v[:, :, :first], y], axis=2),
            geometry=Segments(0),
            mask=None if mask is None else mask[:, :first],
            mask_global=mask,
        )
        y = jnp.concatenate([mine, y], axis=2) if others else mine
    return layer.out(layer.merge(y))


class TransformerXLPositions(nnx.Module):
    """Tables for keys (W_R) and for rows (W_G, b_G) at each distance, and the two query biases u and v."""

    def __init__(self, width: int, heads: int, *, dtype: Any, rngs: nnx.Rngs) -> None:
        self.width, self.heads = width, heads
        self.local = linear(width, width, bias=False, dtype=dtype, rngs=rngs)
        self.rows = linear(width, width, dtype=dtype, rngs=rngs)
        self.content_bias = nnx.Param(jnp.zeros((heads, width // heads)))
        self.position_bias = nnx.Param(jnp.zeros((heads, width // heads)))

    def __call__(self, span: int, rows: int, dtype: Any) -> RelativePositions:
        """Tables for distances 0 to span - 1 between tokens and 0 to rows - 1 between rows."""
        known = sinusoids(max(span, rows), self.width, dtype)
        local, distant = (
            rearrange(project(known[:count]), "t (h d) -> h t d", h=self.heads)
            for project, count in ((self.local, span), (self.rows, rows))
        )
        tables = (self.content_bias[...], self.position_bias[...], local, distant)
        return RelativePositions(*(t.astype(dtype) for t in tables))


def sinusoids(count: int, width: int, dtype: Any) -> Array:
    """[count, width]: sines of the distances at width / 2 frequencies from 1 to 1 / 10,000, then their cosines."""
    angles = np.arange(count)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width], dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CausalCache:
    """What a causal layer carries from one block of a text to the next, as a tree of arrays for jit and lax.scan.

    Shapes stay the same: the newest stands last, and what is not there yet is masked.
    """

    k: Array  # [B, H, kept, D], normalised keys of the last tokens
    v: Array
    k_global: Array  # [B, H, rows, D], normalised rows of the last segments finished
    v_global: Array
    logits: Array  # [B, segment - 1, H·R], of the projection, of the last tokens
    length: Array  # tokens of the text so far, those no longer kept included


class CausalLongShortAttention(Projections):
    """Causal attention: each token sees a window of its past and `rank` rows of every segment finished before its own.

    attention = CausalLongShortAttention(width=512, heads=8, window=512, segment=16, rank=1, rngs=nnx.Rngs(0))
    y, _ = attention(x)                                    # x: [B, N, 512], a text from its start
    cache = attention.empty_cache(batch=1, memory=8192)    # rows of the last 8,192 tokens
    y, cache = attention(x, cache)                         # blocks of any length, token by token in lax.scan
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        segment: int,
        rank: int,
        kind: Literal["sliding", "segment"] = "sliding",
        positions: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
        dtype: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(width, heads, rank, bias, dropout, dual_norm, eps, impl, dtype, rngs)
        self.geometry = Causal(window, segment, rank, kind)
        if not isinstance(positions, bool):
            raise ValueError(f"positions must be True (Transformer-XL's) or False, got {positions!r}")
        self.positions = TransformerXLPositions(width, heads, dtype=dtype, rngs=rngs) if positions else None

    def __call__(self, x: Array, cache: CausalCache | None = None) -> tuple[Array, CausalCache | None]:
        """Without a cache, a text from its start, and none comes back: how much to keep is said by `empty_cache`."""
        self.check_input(x)
        q, (k, v), logits = self.split(self.query(x)), self.keys_and_values(x), self.rows(x)
        g, n = self.geometry, x.shape[1]
        if cache is None:
            k_global, v_global = self.normalise_rows(dynamic_projection(logits, k, v, segment=g.segment))
            tables = self.tables(k_global.shape[2], q.dtype)
            y = self.attend(q, k, v, k_global, v_global, geometry=g, positions=tables)
            return self.out(self.merge(y)), None
        self.check_cache(x, cache)
        cache = lax.stop_gradient(cache)
        k, v = (jnp.concatenate([old, new], axis=2) for old, new in ((cache.k, k), (cache.v, v)))
        logits = jnp.concatenate([cache.logits, logits], axis=1)

        # Rows of the segments that end in this block, and room for one that may not.
        unfinished = cache.length % g.segment
        most, finished = (n + g.segment - 1) // g.segment, (unfinished + n) // g.segment
        first = g.segment - 1 - unfinished  # of the tokens that logits has
        recent = [newest(logits, 1, g.segment - 1 + n), *(newest(t, 2, g.segment - 1 + n) for t in (k, v))]
        opened = [part(t, axis, first, most * g.segment) for t, axis in zip(recent, (1, 2, 2), strict=True)]
        rows = self.normalise_rows(dynamic_projection(*opened, segment=g.segment))
        room = cache.k_global.shape[2]
        k_global, v_global = (
            jnp.concatenate([old, new], axis=2) for old, new in zip((cache.k_global, cache.v_global), rows, strict=True)
        )
        first_row = g.rows_before(cache.length) - room
        y = self.attend(
            q,
            k,
            v,
            k_global,
            v_global,
            geometry=g,
            mask=there(cache.length - cache.k.shape[2], k),
            mask_global=there(first_row, k_global),
            positions=self.tables(k_global.shape[2], q.dtype),
            start=cache.length,
            first_row=first_row,
        )
        made = CausalCache(
            k=newest(k, 2, g.kept),
            v=newest(v, 2, g.kept),
            k_global=part(k_global, 2, finished * g.rank, room),
            v_global=part(v_global, 2, finished * g.rank, room),
            logits=newest(logits, 1, g.segment - 1),
            length=cache.length + n,
        )
        same_types = jax.tree.map(lambda new, old: new.astype(old.dtype), made, cache)  # as lax.scan wants it
        return self.out(self.merge(y)), same_types

    def tables(self, rows: int, dtype: Any) -> RelativePositions | None:
        return None if self.positions is None else self.positions(self.geometry.span, rows, dtype)

    def empty_cache(self, batch: int, memory: int, dtype: Any = None) -> CausalCache:
        """Before a text. memory: rows of the last so many tokens are kept, in whole segments; what was dropped is seen
        by no one. dtype: of keys and values, the layer's unless given."""
        if batch < 1 or memory < 0:
            raise ValueError(f"batch must be at least 1 and memory not negative, got {batch} and {memory}")
        g, dtype = self.geometry, dtype or self.dtype or jnp.float32

        def zeros(tokens: int) -> Array:
            return jnp.zeros((batch, self.heads, tokens, self.width // self.heads), dtype)

        rows = g.rows_before(memory)
        logits = jnp.zeros((batch, g.segment - 1, self.heads * self.rank), dtype)
        return CausalCache(zeros(g.kept), zeros(g.kept), zeros(rows), zeros(rows), logits, jnp.zeros((), jnp.int32))

    def check_cache(self, x: Array, cache: CausalCache) -> None:
        if not isinstance(cache, CausalCache):
            raise ValueError(f"cache must be a CausalCache, such as empty_cache makes, got {type(cache).__name__}")
        batch, width, g = x.shape[0], self.width // self.heads, self.geometry
        rows = cache.k_global.shape[2]
        expected = {
            "k": (batch, self.heads, g.kept, width),
            "k_global": (batch, self.heads, rows, width),
            "logits": (batch, g.segment - 1, self.heads * self.rank),
        }
        for name, shape in expected.items():
            if getattr(cache, name).shape != shape:
                raise ValueError(
                    f"cache is of another batch or layer: its {name} is {getattr(cache, name).shape}, expected {shape}"
                )


def newest(t: Array, axis: int, count: int) -> Array:
    return lax.slice_in_dim(t, t.shape[axis] - count, None, axis=axis)


def part(t: Array, axis: int, first: Array, count: int) -> Array:
    """`count` from `first` on, zeros after the end."""
    padding = [(0, count if each == axis else 0) for each in range(t.ndim)]
    return lax.dynamic_slice_in_dim(jnp.pad(t, padding), first, count, axis=axis)


def there(first: Array, t: Array) -> Array:
    """[B, any]: whether what stands there in [B, H, any, D] is of the text, the first of it being number `first`."""
    return jnp.broadcast_to(first + jnp.arange(t.shape[2]) >= 0, (t.shape[0], t.shape[2]))
