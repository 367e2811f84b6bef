"""The attention slot: what a model with exchangeable attention is handed.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from longshort.nn.attention import GridLongShortAttention, LongShortAttention
from longshort.nn.convolution import ConvFullAttention, ConvLongShortAttention
from longshort.nn.grid import GridFullAttention, Size
from longshort.nn.positions import rotated, turns
from longshort.ops.check import check_count
from longshort.ops.packed import packable, packed_attention
from longshort.serial import registered


class AttentionSpec(Protocol):
    """A frozen dataclass with an attention's own settings; the type is the registry.

    It builds a module with forward(x, mask=None, count=None): [B, N, C] → [B, N, C], N at most max_length, mask [B, N]
    True on real tokens. With a count, what the first so many tokens come to is wanted alone, [B, count, C]. The first
    `global_tokens` of x should be seen by all and see all; an attention that knows no such tokens takes them for
    ordinary ones. counts_padding: how much padding there is changes what real tokens come to.
    """

    counts_padding: ClassVar[bool]

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> nn.Module: ...


class GridAttentionSpec(Protocol):
    """The same for images: modules with forward(x, size), x [B, G + N, C], a grid row by row and global tokens first.

    build_grid: from linear layers; relative: with biases of relative positions, for which `grid` is the size that the
    model is made for. build_conv: from convolutions, which need no positions.
    """

    def build_grid(
        self,
        width: int,
        heads: int,
        grid: Size,
        *,
        relative: bool,
        dropout: float = 0.0,
        global_tokens: int = 0,
    ) -> nn.Module: ...

    def build_conv(self, width: int, heads: int, *, dropout: float = 0.0, global_tokens: int = 0) -> nn.Module: ...


@registered("LongShort")
@dataclass(frozen=True)
class LongShort:
    """Ours. rank 0 is the window alone, window 0 the dynamic projection alone."""

    window: int
    rank: int
    dual_norm: bool = True
    rotary: bool = False
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> LongShortAttention:
        return LongShortAttention(
            width,
            heads,
            window=self.window,
            rank=self.rank,
            dual_norm=self.dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
            rotary=self.rotary,
        )

    def build_grid(
        self, width: int, heads: int, grid: Size, *, relative: bool, dropout: float = 0.0, global_tokens: int = 0
    ) -> GridLongShortAttention:
        _check_not_rotary(self.rotary)
        return GridLongShortAttention(
            width,
            heads,
            window=self.window,
            rank=self.rank,
            relative_bias=relative and self.window > 0,
            dual_norm=self.dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
        )

    def build_conv(
        self, width: int, heads: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> ConvLongShortAttention:
        _check_not_rotary(self.rotary)
        return ConvLongShortAttention(
            width,
            heads,
            window=self.window,
            rank=self.rank,
            dual_norm=self.dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
        )


@registered("Full")
@dataclass(frozen=True)
class Full:
    """All tokens see all tokens."""

    rotary: bool = False
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> FullAttention:
        return FullAttention(width, heads, rotary=self.rotary, dropout=dropout)

    def build_grid(
        self, width: int, heads: int, grid: Size, *, relative: bool, dropout: float = 0.0, global_tokens: int = 0
    ) -> GridFullAttention:
        _check_not_rotary(self.rotary)
        size = grid if relative else None
        return GridFullAttention(width, heads, size=size, dropout=dropout, global_tokens=global_tokens)

    def build_conv(self, width: int, heads: int, *, dropout: float = 0.0, global_tokens: int = 0) -> ConvFullAttention:
        _check_not_rotary(self.rotary)
        return ConvFullAttention(width, heads, dropout=dropout, global_tokens=global_tokens)


def _check_not_rotary(rotary: bool) -> None:
    if rotary:
        raise ValueError("rotary positions are for sequences, not for grids")


class FullAttention(nn.Module):
    """softmax(q kᵀ) v by PyTorch's kernels; with those of a GPU for 16 bits, padding costs nothing."""

    def __init__(self, width: int, heads: int, *, rotary: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        self.heads, self.rotary, self.dropout = heads, rotary, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None, count: int | None = None) -> Tensor:
        check_count(count, x)
        queries = x if count is None else x[:, :count]
        q, k, v = self.query(queries), self.key(x), self.value(x)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        if self.rotary:
            turned = turns(k, 0, k.shape[2])
            q, k = rotated(q, turned[:, :count]), rotated(k, turned)
        dropout = self.dropout if self.training else 0.0
        if mask is not None and count is None and packable(q):
            y = packed_attention(q, k, v, mask, dropout)
        else:
            seen = None if mask is None else mask[:, None, None, :]  # [B, 1, 1, N]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        return self.out(rearrange(y, "b h n d -> b n (h d)"))
