"""The attention slot of the sequence models, and what long-short attention is compared with.

A spec is a frozen dataclass with an attention's own settings. B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax import Array

from longshort.jax.attention import LongShortAttention, check_count, drop, linear
from longshort.jax.ops import check_mask


@dataclass(frozen=True)
class Slot:
    """What a model says of the place an attention is built for.

    global_tokens: so many first ones should be seen by all and see all; an attention that knows no such tokens takes
    them for ordinary ones. dropout: on the weights of attention, where there are any.
    """

    width: int
    heads: int
    max_length: int
    dropout: float = 0.0
    global_tokens: int = 0
    dtype: Any = None


@runtime_checkable
class AttentionSpec(Protocol):
    """It builds a module that is called with (x, mask, count): [B, N, C] → [B, N, C], or what the first `count` tokens
    come to."""

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module: ...


@dataclass(frozen=True)
class LongShort:
    """Ours. rank 0 is the window alone, window 0 the dynamic projection alone."""

    window: int
    rank: int
    dual_norm: bool = True

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module:
        return LongShortAttention(
            slot.width,
            slot.heads,
            window=self.window,
            rank=self.rank,
            dual_norm=self.dual_norm,
            dropout=slot.dropout,
            global_tokens=slot.global_tokens,
            dtype=slot.dtype,
            rngs=rngs,
        )


@dataclass(frozen=True)
class Full:
    """All tokens see all tokens. implementation: of jax.nn.dot_product_attention; cuDNN's is flash attention, for GPUs,
    16 bits, padding at the end and no dropout."""

    implementation: Literal["xla", "cudnn"] = "xla"

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module:
        if self.implementation == "cudnn" and slot.dropout:
            raise ValueError(f"cuDNN's attention knows no dropout, and {slot.dropout} is asked for")
        return FullAttention(slot, self.implementation, rngs)


@dataclass(frozen=True)
class Local:
    """Segments of `window` tokens, each of which sees itself alone, as in the Long Range Arena."""

    window: int

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module:
        return LocalAttention(slot, self.window, rngs)


@dataclass(frozen=True)
class Linformer:
    """Keys and values of all positions in `rank` rows, by weights that are learned for each position."""

    rank: int

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module:
        return LinformerAttention(slot, self.rank, rngs)


@dataclass(frozen=True)
class Performer:
    """Linear attention with positive random features of the softmax kernel (FAVOR+), which has no weights to drop."""

    features: int

    def build(self, slot: Slot, rngs: nnx.Rngs) -> nnx.Module:
        return PerformerAttention(slot, self.features, rngs)


class Attention(nnx.Module):
    """Queries, keys and values, an attention over them, and the output."""

    def __init__(self, slot: Slot, rngs: nnx.Rngs) -> None:
        if slot.width % slot.heads:
            raise ValueError(f"width {slot.width} is not divisible by heads {slot.heads}")
        self.heads = slot.heads
        self.query, self.key, self.value, self.out = (
            linear(slot.width, slot.width, dtype=slot.dtype, rngs=rngs) for _ in range(4)
        )
        self.dropout = drop(slot.dropout, rngs)

    def __call__(self, x: Array, mask: Array | None = None, count: int | None = None) -> Array:
        check_mask("mask", mask, *x.shape[:2])
        check_count(count, x)
        mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
        q, k, v = (rearrange(p(x), "b n (h d) -> b n h d", h=self.heads) for p in (self.query, self.key, self.value))
        y = rearrange(self.attend(q, k, v, mask), "b n h d -> b n (h d)")
        return self.out(y if count is None else y[:, :count])

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        """q, k, v: [B, N, H, D]; mask: [B, N]."""
        raise NotImplementedError

    def softmax(self, q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
        """By JAX's own function, unless weights are to be dropped."""
        seen = None if mask is None else mask[:, None, None]
        if not self.dropout.rate or self.dropout.deterministic:
            return jax.nn.dot_product_attention(q, k, v, mask=seen)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[3] ** -0.5
        weights = jax.nn.softmax(scores if seen is None else jnp.where(seen, scores, jnp.finfo(scores.dtype).min))
        return jnp.einsum("bhqk,bkhd->bqhd", self.dropout(weights).astype(v.dtype), v)


class FullAttention(Attention):
    def __init__(self, slot: Slot, implementation: str, rngs: nnx.Rngs) -> None:
        super().__init__(slot, rngs)
        self.implementation = implementation

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        if self.implementation == "xla":
            return self.softmax(q, k, v, mask)
        lengths = mask.sum(1, dtype=jnp.int32)
        all_queries = jnp.full_like(lengths, q.shape[1])
        return jax.nn.dot_product_attention(
            q, k, v, query_seq_lengths=all_queries, key_value_seq_lengths=lengths, implementation="cudnn"
        )


class LocalAttention(Attention):
    def __init__(self, slot: Slot, window: int, rngs: nnx.Rngs) -> None:
        super().__init__(slot, rngs)
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        n = q.shape[1]
        missing = -n % self.window
        mask = jnp.pad(mask, ((0, 0), (0, missing)))
        q, k, v = (jnp.pad(t, ((0, 0), (0, missing), (0, 0), (0, 0))) for t in (q, k, v))
        q, k, v = (rearrange(t, "b (s w) h d -> (b s) w h d", w=self.window) for t in (q, k, v))
        y = self.softmax(q, k, v, rearrange(mask, "b (s w) -> (b s) w", w=self.window))
        return rearrange(y, "(b s) w h d -> b (s w) h d", b=mask.shape[0])[:, :n]


class LinformerAttention(Attention):
    def __init__(self, slot: Slot, rank: int, rngs: nnx.Rngs) -> None:
        super().__init__(slot, rngs)
        self.rows = linear(slot.max_length, rank, bias=False, rngs=rngs)  # kernel: [max_length, rank]

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        n = q.shape[1]
        if n > self.rows.kernel.shape[0]:
            raise ValueError(f"Linformer reads at most {self.rows.kernel.shape[0]} tokens, got {n}")
        weights = self.rows.kernel[:n].astype(q.dtype)
        k, v = (jnp.einsum("bnhd,nr->brhd", jnp.where(mask[..., None, None], t, 0), weights) for t in (k, v))
        return self.softmax(q, k, v)


class PerformerAttention(Attention):
    """softmax(q·k) ≈ φ(q)·φ(k) with φ(x) = exp(ω·x - |x|² / 2), ω drawn once, orthogonal within each block of D."""

    def __init__(self, slot: Slot, features: int, rngs: nnx.Rngs) -> None:
        super().__init__(slot, rngs)
        self.features = nnx.Variable(orthogonal(rngs.params(), features, slot.width // slot.heads))  # [features, D]

    def attend(self, q: Array, k: Array, v: Array, mask: Array) -> Array:
        dtype = q.dtype
        q, k = (self.feature_map(t, over) for t, over in ((q, (3,)), (k, (1, 3))))  # [B, N, H, features]
        k = jnp.where(mask[..., None, None], k, 0)
        total = jnp.einsum("bnhf,bhf->bnh", q, k.sum(1))[..., None]
        out = jnp.einsum("bnhf,bhfd->bnhd", q, jnp.einsum("bnhf,bnhd->bhfd", k, v.astype(q.dtype)))
        return (out / jnp.where(total > 0, total, 1)).astype(dtype)  # nothing is seen where all is padding

    def feature_map(self, x: Array, over: tuple[int, ...]) -> Array:
        """In float32, with what leaves the quotient the same taken off, so that nothing overflows."""
        x = x.astype(jnp.float32) * x.shape[3] ** -0.25
        scores = jnp.einsum("bnhd,fd->bnhf", x, self.features[...])
        largest = jax.lax.stop_gradient(scores.max(over, keepdims=True))
        return jnp.exp(scores - (x**2).sum(3, keepdims=True) / 2 - largest)


def orthogonal(key: Array, features: int, width: int) -> Array:
    """[features, width] of normal lengths, in blocks of `width` orthogonal directions."""
    lengths, directions = jax.random.split(key)
    q, r = jnp.linalg.qr(jax.random.normal(directions, (-(-features // width), width, width)))
    q = q * jnp.sign(jnp.diagonal(r, axis1=1, axis2=2))[:, None]  # without which some directions are more likely
    norms = jnp.linalg.norm(jax.random.normal(lengths, (features, width)), axis=1, keepdims=True)
    return q.reshape(-1, width)[:features] * norms
