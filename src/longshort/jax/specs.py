"""The attention slot of the sequence models, and what long-short attention is compared with.

A spec is a frozen dataclass with an attention's own settings. It builds a module that is called with (x, mask, count):
[B, N, C] → [B, N, C], or what the first `count` tokens come to. B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax import Array

from longshort.jax.attention import LongShortAttention, linear
from longshort.jax.ops import check_mask


class AttentionSpec(Protocol):
    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module: ...


@dataclass(frozen=True)
class LongShort:
    """Ours. rank 0 is the window alone, window 0 the dynamic projection alone."""

    window: int
    rank: int
    dual_norm: bool = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module:
        return LongShortAttention(
            width,
            heads,
            window=self.window,
            rank=self.rank,
            dual_norm=self.dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
            dtype=dtype,
            rngs=rngs,
        )


@dataclass(frozen=True)
class Full:
    """All tokens see all tokens. implementation: of jax.nn.dot_product_attention; cuDNN's is flash attention, for GPUs,
    16 bits and padding at the end."""

    implementation: Literal["xla", "cudnn"] = "xla"

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module:
        return Attention(width, heads, self.attend, dtype, rngs)

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        if self.implementation == "cudnn":
            lengths = mask.sum(1, dtype=jnp.int32)
            queries = jnp.full_like(lengths, q.shape[1])
            return jax.nn.dot_product_attention(
                q, k, v, query_seq_lengths=queries, key_value_seq_lengths=lengths, implementation="cudnn"
            )
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None, None])


@dataclass(frozen=True)
class Local:
    """Segments of `window` tokens, each of which sees itself alone, as in the Long Range Arena."""

    window: int

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module:
        return Attention(width, heads, self.attend, dtype, rngs)

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        n = q.shape[1]
        missing = -n % self.window
        mask = jnp.pad(mask, ((0, 0), (0, missing)))
        q, k, v = (jnp.pad(t, ((0, 0), (0, missing), (0, 0), (0, 0))) for t in (q, k, v))
        q, k, v = (rearrange(t, "b (s w) h d -> (b s) w h d", w=self.window) for t in (q, k, v))
        seen = rearrange(mask, "b (s w) -> (b s) 1 1 w", w=self.window)
        y = jax.nn.dot_product_attention(q, k, v, mask=seen)
        return rearrange(y, "(b s) w h d -> b (s w) h d", b=mask.shape[0])[:, :n]


@dataclass(frozen=True)
class Linformer:
    """Keys and values of all positions in `rank` rows, by weights that are learned for each position."""

    rank: int

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module:
        return LinformerAttention(width, heads, self.rank, max_length, dtype, rngs)


@dataclass(frozen=True)
class Performer:
    """Linear attention with positive random features of the softmax kernel (FAVOR+)."""

    features: int

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float, global_tokens: int, dtype: Any, rngs: nnx.Rngs
    ) -> nnx.Module:
        return PerformerAttention(width, heads, self.features, dtype, rngs)


Attend = Callable[[Array, Array, Array, Array], Array]  # q, k, v [B, N, H, D] and the mask [B, N] → [B, N, H, D]


class Attention(nnx.Module):
    """Queries, keys and values, an attention over them, and the output."""

    def __init__(self, width: int, heads: int, attend: Attend | None, dtype: Any, rngs: nnx.Rngs) -> None:
        if width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        self.heads = heads
        self.query, self.key, self.value, self.out = (linear(width, width, dtype=dtype, rngs=rngs) for _ in range(4))
        if attend is not None:
            self.attend = attend

    def __call__(self, x: Array, mask: Array | None = None, count: int | None = None) -> Array:
        check_mask("mask", mask, *x.shape[:2])
        mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
        q, k, v = (rearrange(p(x), "b n (h d) -> b n h d", h=self.heads) for p in (self.query, self.key, self.value))
        y = rearrange(self.attend(q, k, v, mask), "b n h d -> b n (h d)")
        return self.out(y if count is None else y[:, :count])


class LinformerAttention(Attention):
    def __init__(self, width: int, heads: int, rank: int, max_length: int, dtype: Any, rngs: nnx.Rngs) -> None:
        super().__init__(width, heads, None, dtype, rngs)
        self.rows = linear(max_length, rank, bias=False, rngs=rngs)  # kernel: [max_length, rank]

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        n = q.shape[1]
        if n > self.rows.kernel.shape[0]:
            raise ValueError(f"Linformer reads at most {self.rows.kernel.shape[0]} tokens, got {n}")
        weights = self.rows.kernel[:n].astype(q.dtype)
        k, v = (jnp.einsum("bnhd,nr->brhd", jnp.where(mask[..., None, None], t, 0), weights) for t in (k, v))
        return jax.nn.dot_product_attention(q, k, v)


class PerformerAttention(Attention):
    """softmax(q·k) ≈ φ(q)·φ(k) with φ(x) = exp(ω·x - |x|² / 2), ω drawn once, orthogonal within each block of D."""

    def __init__(self, width: int, heads: int, features: int, dtype: Any, rngs: nnx.Rngs) -> None:
        super().__init__(width, heads, None, dtype, rngs)
        self.features = nnx.Variable(orthogonal(rngs.params(), features, width // heads))  # [features, D]

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        q, k = (self.feature_map(t, over) for t, over in ((q, (3,)), (k, (1, 3))))  # [B, N, H, features]
        k = jnp.where(mask[..., None, None], k, 0)
        v = v.astype(q.dtype)
        total = jnp.einsum("bnhf,bhf->bnh", q, k.sum(1))
        out = jnp.einsum("bnhf,bhfd->bnhd", q, jnp.einsum("bnhf,bnhd->bhfd", k, v)) / total[..., None]
        return out.astype(self.query.dtype or jnp.float32)

    def feature_map(self, x: Array, over: tuple[int, ...]) -> Array:
        """In float32, with what leaves the quotient the same taken off, so that nothing overflows."""
        x = x.astype(jnp.float32) * x.shape[3] ** -0.25
        scores = jnp.einsum("bnhd,fd->bnhf", x, self.features[...])
        largest = jax.lax.stop_gradient(scores.max(over, keepdims=True))
        return jnp.exp(scores - (x**2).sum(3, keepdims=True) / 2 - largest) + 1e-6


def orthogonal(key: Array, features: int, width: int) -> Array:
    """[features, width] of normal lengths, in blocks of `width` orthogonal directions."""
    blocks = -(-features // width)
    lengths, *keys = jax.random.split(key, blocks + 1)
    directions = jnp.concatenate([jnp.linalg.qr(jax.random.normal(k, (width, width)))[0] for k in keys])[:features]
    return directions * jnp.linalg.norm(jax.random.normal(lengths, (features, width)), axis=1, keepdims=True)
