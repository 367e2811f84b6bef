"""The paper's language model over characters: a pre-LN transformer whose layers see a window and rows of all the past.

B batch, N tokens, C width, V vocabulary.
"""
# no `from __future__ import annotations`: the hub mixin reads the type of `config` to load it again

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from torch import Tensor, nn

from longshort.models.hub import OnHub, check_layers
from longshort.nn import CausalCache, CausalLongShortAttention
from longshort.nn.blocks import FeedForward
from longshort.serial import registered

Caches = tuple[CausalCache, ...]
PER_KIND = 16  # times that a block may be compiled: without a cache, with one, to train, to evaluate


@registered("CharLMConfig")
@dataclass(frozen=True)
class CharLMConfig:
    """What the weights depend on. `window` and `rank` are one number for all layers or one for each.

    dropout is the paper's one rate: on the embeddings, inside the feed-forward layers and on what each layer adds.
    attention_dropout is on attention weights; the paper names no second rate, and as in Transformer-XL it is 0.
    positions: "relative" as in Transformer-XL (the paper), "rotary" (ours: faster), or "none".
    memory: characters whose rows the caches carry on, and the longest block to read at once: distances beyond those of
    the training mean nothing to a model. None: no bound.
    """

    layers: int = 12
    width: int = 512
    heads: int = 8
    feedforward: int = 2048
    window: int | tuple[int, ...] = 512
    segment: int = 16
    rank: int | tuple[int, ...] = 1
    positions: Literal["relative", "rotary", "none"] = "relative"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dual_norm: bool = True
    memory: int | None = None
    vocabulary: int = 256

    def __post_init__(self) -> None:
        for name in ("layers", "feedforward", "vocabulary"):
            if isinstance(getattr(self, name), float) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)}")
        check_layers(self.layers)
        if self.positions not in ("relative", "rotary", "none"):
            raise ValueError(f"positions must be 'relative', 'rotary' or 'none', got {self.positions!r}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"memory must be at least 1, or None for no bound, got {self.memory}")
        for name in ("window", "rank"):
            sizes = getattr(self, name)
            if isinstance(sizes, int):
                continue
            object.__setattr__(self, name, tuple(sizes))  # a list, when it comes from JSON
            if len(sizes) != self.layers:
                raise ValueError(f"{name} has {len(sizes)} numbers for {self.layers} layers")

    def by_layer(self, sizes: int | tuple[int, ...]) -> tuple[int, ...]:
        return (sizes,) * self.layers if isinstance(sizes, int) else sizes

    def build(self) -> "CharLM":
        return CharLM(self)


PRESETS = {
    "small": CharLMConfig(dropout=0.2),  # the paper's 44M
    "large": CharLMConfig(layers=30, dropout=0.4),  # the paper's 110M
    "base": CharLMConfig(layers=8, width=384, heads=6, feedforward=1536, window=256, positions="rotary"),
    "tiny": CharLMConfig(layers=4, width=192, heads=3, feedforward=768, window=128, positions="rotary"),
}


class Block(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x)): nothing ever normalises x itself."""

    def __init__(self, config: CharLMConfig, window: int, rank: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalLongShortAttention(
            config.width,
            config.heads,
            window=window,
            segment=config.segment,
            rank=rank,
            positions="rotary" if config.positions == "rotary" else config.positions == "relative",
            dropout=config.attention_dropout,
            dual_norm=config.dual_norm,
        )
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config.width, config.feedforward, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cache: CausalCache | None) -> tuple[Tensor, CausalCache]:  # [B, N, C]
        y, cache = self.attention(self.attention_norm(x), cache)
        x = x + self.dropout(y)
        return x + self.dropout(self.feedforward(self.feedforward_norm(x))), cache


class CharLM(nn.Module, OnHub, tags=["long-short-transformer", "character-language-model"]):
    """Scores of the next character (a byte), for every character of a text read in one pass or in blocks.

        model = CharLM(PRESETS["small"])
        logits, caches = model(tokens)              # [B, N] bytes → [B, N, 256]
        logits, caches = model(more, caches)        # goes on where the text stopped
        model.save_pretrained(folder);  model = CharLM.from_pretrained(folder)

    The caches carry rows of the last `config.memory` characters; a text is best read in blocks of at most so many.
    """

    def __init__(self, config: CharLMConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)  # and, transposed, the output layer
        self.dropout = nn.Dropout(config.dropout)
        sizes = zip(config.by_layer(config.window), config.by_layer(config.rank), strict=True)
        self.blocks = nn.ModuleList(Block(config, window, rank) for window, rank in sizes)
        self.norm = nn.LayerNorm(config.width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, with deviation 0.02; what goes into the residual stream is less, so that its sum does not grow."""
        for name, p in self.named_parameters():
            if p.dim() < 2 or name.endswith(("content_bias", "position_bias")):
                continue  # biases start at 0 and norms at 1
            into_stream = name.endswith(("attention.out.weight", "feedforward.out.weight"))
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * self.config.layers) if into_stream else 0.02)
        for m in self.modules():
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, tokens: Tensor, caches: Sequence[CausalCache] | None = None) -> tuple[Tensor, Caches]:
        if tokens.dim() != 2 or tokens.shape[1] < 1 or tokens.is_floating_point():
            raise ValueError(
                f"tokens must be whole numbers [batch, at least 1], got {tokens.dtype} {tuple(tokens.shape)}"
            )
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(f"caches are of {len(caches)} layers, and the model has {len(self.blocks)}")
        x = self.dropout(self.embedding(tokens.long()))  # [B, N, C]
        made = []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i])
            made.append(cache.last(self.config.memory))
        return self.norm(x) @ self.embedding.weight.T, tuple(made)  # [B, N, V]

    def filled(self, caches: Caches) -> Caches:
        """The same caches in the shape of full ones, if there is a bound: shapes then come again with every segment."""
        return tuple(cache.filled(self.config.memory) for cache in caches)

    def compile(self, *args: Any, **keywords: Any) -> None:
        """Each block in its place, by torch.compile: once for all of one window and rank, which share their code."""
        from torch._dynamo import config

        sizes = zip(*(self.config.by_layer(each) for each in (self.config.window, self.config.rank)), strict=True)
        config.recompile_limit = max(config.recompile_limit, PER_KIND * len(set(sizes)))
        for block in self.blocks:
            block.compile(*args, **keywords)

    @classmethod
    def preset(cls, name: str) -> Self:
        if name not in PRESETS:
            raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
        return cls(PRESETS[name])
