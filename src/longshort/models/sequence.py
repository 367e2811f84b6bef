"""The paper's bidirectional encoder for the Long Range Arena, with any attention, and its heads for one text or two.

B batch, N tokens, C width, V vocabulary, K classes. Token 0 pads.
"""
# no `from __future__ import annotations`: the hub mixin reads the type of `config` to load it again

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longshort.models.hub import OnHub, check_layers
from longshort.nn.blocks import FeedForward
from longshort.nn.embedding import Embedding
from longshort.nn.spec import AttentionSpec
from longshort.serial import registered

Pooling = Literal["cls", "mean"]


@registered("SequenceConfig")
@dataclass(frozen=True)
class SequenceConfig:
    """What the weights depend on. The defaults are the paper's.

    attention: such as LongShort(window=8, rank=32); every layer has one.
    length: the most tokens of a sequence; positions are learned for so many, unless they are "none" (for an attention
    that knows positions by itself).
    pooling: what stands for a sequence, the CLS token or the mean over its tokens; then there is no CLS.
    dropout is on the embeddings, inside the feed-forward layers and on what each layer adds; attention_dropout is on
    attention weights, where an attention has them.
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
    positions: Literal["learned", "none"] = "learned"
    pooling: Pooling = "cls"
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("classes", "length", "layers", "width", "heads", "feedforward", "head", "vocabulary"):
            if isinstance(getattr(self, name), float) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)}")
        check_layers(self.layers)
        if self.positions not in ("learned", "none"):
            raise ValueError(f"positions must be 'learned' or 'none', got {self.positions!r}")
        if self.pooling not in ("cls", "mean"):
            raise ValueError(f"pooling must be 'cls' or 'mean', got {self.pooling!r}")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")

    def build(self) -> nn.Module:
        return SequenceClassifier(self)


@registered("PairConfig")
@dataclass(frozen=True)
class PairConfig(SequenceConfig):
    """The same encoder for both texts, and a head over what it made of them."""

    def build(self) -> nn.Module:
        return PairClassifier(self)


@registered("MaskedConfig")
@dataclass(frozen=True)
class MaskedConfig(SequenceConfig):
    """The same encoder, to be trained to restore tokens; `classes` and `head` are of the classifier to come."""

    def build(self) -> nn.Module:
        return MaskedModel(self)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, config: SequenceConfig, global_tokens: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = config.attention.build(
            config.width,
            config.heads,
            config.length + global_tokens,
            dropout=config.attention_dropout,
            global_tokens=global_tokens,
        )
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config.width, config.feedforward, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor, count: int | None = None) -> Tensor:  # [B, N, C], [B, N]
        """What all tokens come to, or the first `count` alone."""
        y = self.attention(self.attention_norm(x), mask, count)
        x = (x if count is None else x[:, :count]) + self.dropout(y)
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class Encoder(nn.Module):
    """Tokens [B, N] to features [B, 1 + N, C], CLS's first, or without CLS [B, N, C]; pooled, to what stands for each
    sequence, [B, C].

    CLS comes before the last layer, and is a global token there. Where its features alone are wanted, much of that
    layer is left out.
    """

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.length = config.length
        self.embedding = Embedding(config.vocabulary, config.width)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.length, config.width) if learned else None
        self.cls = nn.Parameter(torch.empty(config.width)) if config.pooling == "cls" else None
        self.dropout = nn.Dropout(config.dropout)
        last = config.layers - 1
        self.blocks = nn.ModuleList(Block(config, int(i == last and self.cls is not None)) for i in range(last + 1))
        self.norm = nn.LayerNorm(config.width)
        for table in (self.embedding.weight, self.cls, None if self.positions is None else self.positions.weight):
            if table is not None:
                nn.init.normal_(table, std=0.02)

    def forward(self, tokens: Tensor, pooled: bool = False) -> Tensor:
        if tokens.dim() != 2 or tokens.shape[1] < 1 or tokens.is_floating_point():
            raise ValueError(
                f"tokens must be whole numbers [batch, at least 1], got {tokens.dtype} {tuple(tokens.shape)}"
            )
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"sequences of {tokens.shape[1]} tokens are longer than the model's {self.length}: cut them"
            )
        mask = tokens != 0
        x = self.embed(tokens.long())  # [B, N, C]
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        x = self.dropout(x)
        *lower, last = self.blocks
        for block in lower:
            x = block(x, mask)
        if self.cls is None:
            x = self.norm(last(x, mask))
            return mean(x, mask) if pooled else x
        x = torch.cat([self.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)  # [B, 1 + N, C]
        mask = nn.functional.pad(mask, (1, 0), value=True)
        if pooled:
            return self.norm(last(x, mask, count=1))[:, 0]
        return self.norm(last(x, mask))

    def embed(self, tokens: Tensor) -> Tensor:
        try:
            return self.embedding(tokens)
        except IndexError:  # on a CPU; a GPU says so later, and in other words
            found = f"from {tokens.min().item()} to {tokens.max().item()}"
            most = self.embedding.num_embeddings - 1
            raise ValueError(f"tokens must be numbers from 0 to {most}, and these are {found}") from None


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """Over real tokens: [B, N, C], [B, N] → [B, C]."""
    exact = torch.promote_types(x.dtype, torch.float32)
    total = x.masked_fill(~mask[..., None], 0.0).sum(1, dtype=exact)
    return (total / mask.sum(1, keepdim=True).clamp(min=1)).to(x.dtype)


def head(inputs: int, config: SequenceConfig) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, config.head), nn.ReLU(), nn.Linear(config.head, config.classes))


class Encoding(nn.Module):
    """What the models have in common."""

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)

    def compile(self, *args: Any, **keywords: Any) -> None:
        """The encoder, by torch.compile."""
        self.encoder.compile(*args, **keywords)


class SequenceClassifier(Encoding, OnHub):
    """Scores of the classes for each sequence.

    model = SequenceClassifier(SequenceConfig(LongShort(window=8, rank=32), classes=10))
    scores = model(tokens)                      # [B, N] whole numbers, 0 pads → [B, 10]
    model.save_pretrained(folder);  model = SequenceClassifier.from_pretrained(folder)
    """

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config)
        self.head = head(config.width, config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens, pooled=True))


class PairClassifier(Encoding, OnHub):
    """Scores of the classes for each pair of sequences a, b: the head sees [a, b, a·b, a−b] of their encodings."""

    def __init__(self, config: PairConfig) -> None:
        super().__init__(config)
        self.head = head(4 * config.width, config)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:  # [B, N], [B, M] → [B, K]
        a, b = (self.encoder(tokens, pooled=True) for tokens in (first, second))
        return self.head(torch.cat([a, b, a * b, a - b], dim=1))


class MaskedModel(Encoding, OnHub):
    """Scores of the tokens that stood where some are masked: [B, N] → [B, N, V]."""

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Linear(config.width, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(self.encoder(tokens)[:, -tokens.shape[1] :])  # without CLS
