"""The paper's bidirectional encoder for the Long Range Arena, with any attention, and its heads for one text or two.

B batch, N tokens, C width, K classes. Token 0 pads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from longshort.jax.attention import drop, layer_norm, linear
from longshort.jax.specs import AttentionSpec, Slot


@dataclass(frozen=True)
class SequenceConfig:
    """What the weights depend on, as in longshort.models.sequence. The defaults are the paper's.

    dtype: what is computed in, such as "bfloat16"; weights are float32.
    """

    attention: AttentionSpec
    classes: int
    length: int = 2048
    layers: int = 2
    width: int = 64
    heads: int = 2
    feedforward: int = 128
    head: int = 128
    vocabulary: int = 512
    pooling: Literal["cls", "mean"] = "cls"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("classes", "length", "layers", "width", "heads", "feedforward", "head", "vocabulary"):
            if isinstance(getattr(self, name), float) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)}")
        if self.pooling not in ("cls", "mean"):
            raise ValueError(f"pooling must be 'cls' or 'mean', got {self.pooling!r}")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.dtype not in ("float32", "bfloat16", "float16", "float64"):
            raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got {self.dtype!r}")


class FeedForward(nnx.Module):
    """Two linear layers with GELU between them, the same for every token."""

    def __init__(self, width: int, inner: int, *, dropout: float, dtype: Any, rngs: nnx.Rngs) -> None:
        self.inner = linear(width, inner, dtype=dtype, rngs=rngs)
        self.out = linear(inner, width, dtype=dtype, rngs=rngs)
        self.dropout = drop(dropout, rngs)

    def __call__(self, x: Array) -> Array:
        return self.out(self.dropout(jax.nn.gelu(self.inner(x), approximate=False)))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, config: SequenceConfig, global_tokens: int, rngs: nnx.Rngs) -> None:
        self.attention_norm = layer_norm(config.width, dtype=config.dtype, rngs=rngs)
        slot = Slot(
            config.width,
            config.heads,
            config.length + global_tokens,
            dropout=config.attention_dropout,
            global_tokens=global_tokens,
            dtype=config.dtype,
        )
        self.attention: Any = config.attention.build(slot, rngs)
        self.feedforward_norm = layer_norm(config.width, dtype=config.dtype, rngs=rngs)
        self.feedforward = FeedForward(
            config.width, config.feedforward, dropout=config.dropout, dtype=config.dtype, rngs=rngs
        )
        self.dropout = drop(config.dropout, rngs)

    def __call__(self, x: Array, mask: Array, count: int | None = None) -> Array:  # [B, N, C], [B, N]
        """What all tokens come to, or the first `count` alone."""
        y = self.attention(self.attention_norm(x), mask, count)
        x = (x if count is None else x[:, :count]) + self.dropout(y)
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class Encoder(nnx.Module):
    """Tokens [B, N] to what stands for each sequence, [B, C]. CLS comes before the last layer, and is a global token
    there; without it, the mean over real tokens is taken. A token outside the vocabulary makes NaN: under jit nothing
    can be said of it."""

    def __init__(self, config: SequenceConfig, rngs: nnx.Rngs) -> None:
        small = nnx.initializers.normal(0.02)
        self.length, self.dtype = config.length, config.dtype
        self.embedding = nnx.Embed(config.vocabulary, config.width, embedding_init=small, rngs=rngs)
        self.positions = nnx.Embed(config.length, config.width, embedding_init=small, rngs=rngs)
        self.cls = nnx.Param(small(rngs.params(), (config.width,))) if config.pooling == "cls" else None
        self.dropout = drop(config.dropout, rngs)
        last = config.layers - 1
        self.blocks = nnx.List([Block(config, int(i == last and self.cls is not None), rngs) for i in range(last + 1)])
        self.norm = layer_norm(config.width, dtype=config.dtype, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        if tokens.ndim != 2 or tokens.shape[1] < 1 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"tokens must be whole numbers [batch, at least 1], got {tokens.dtype} {tokens.shape}")
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"sequences of {tokens.shape[1]} tokens are longer than the model's {self.length}: cut them"
            )
        mask = tokens != 0
        x = self.embedding(tokens) + self.positions.embedding[: tokens.shape[1]]
        x = self.dropout(x.astype(self.dtype))  # [B, N, C]
        *lower, last = self.blocks
        for block in lower:
            x = block(x, mask)
        if self.cls is None:
            return mean(self.norm(last(x, mask)), mask)
        cls = jnp.broadcast_to(self.cls[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
        x, mask = jnp.concatenate([cls, x], axis=1), jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        return self.norm(last(x, mask, count=1))[:, 0]


def mean(x: Array, mask: Array) -> Array:
    """Over real tokens: [B, N, C], [B, N] → [B, C]."""
    exact = jnp.promote_types(x.dtype, jnp.float32)
    total = jnp.where(mask[..., None], x, 0).sum(1, dtype=exact)
    return (total / jnp.maximum(mask.sum(1, keepdims=True), 1)).astype(x.dtype)


def head(inputs: int, config: SequenceConfig, rngs: nnx.Rngs) -> nnx.Sequential:
    return nnx.Sequential(
        linear(inputs, config.head, dtype=config.dtype, rngs=rngs),
        jax.nn.relu,
        linear(config.head, config.classes, dtype=config.dtype, rngs=rngs),
    )


class SequenceClassifier(nnx.Module):
    """Scores of the classes for each sequence.

    model = SequenceClassifier(SequenceConfig(LongShort(window=8, rank=32), classes=10), rngs=nnx.Rngs(0))
    scores = model(tokens)                      # [B, N] whole numbers, 0 pads → [B, 10]
    """

    def __init__(self, config: SequenceConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs)
        self.head = head(config.width, config, rngs)

    def __call__(self, tokens: Array) -> Array:
        return self.head(self.encoder(tokens))


class PairClassifier(nnx.Module):
    """Scores of the classes for each pair of sequences a, b: the head sees [a, b, a·b, a−b] of their encodings."""

    def __init__(self, config: SequenceConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs)
        self.head = head(4 * config.width, config, rngs)

    def __call__(self, first: Array, second: Array) -> Array:  # [B, N], [B, M] → [B, K]
        a, b = self.encoder(first), self.encoder(second)
        return self.head(jnp.concatenate([a, b, a * b, a - b], axis=1))
