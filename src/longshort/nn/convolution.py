"""Attention whose queries, keys, values and row logits come from depth-wise separable convolutions, as in CvT.

The spatial half of each is a convolution of its own; the half over features is the linear layer that every attention
has. Global tokens have no neighbours, and go through the linear layers alone.

B batch, N tokens, C width, G global tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.geometry import Tiles
from longshort.nn.attention import GridLongShortAttention, attend_from, cut
from longshort.nn.grid import GridFullAttention, Size
from longshort.ops import Implementation
from longshort.ops.check import check_size

KERNEL = 3  # tokens on a side of what a convolution sees


class Depthwise(nn.Module):
    """Each feature of a token with those of its neighbours, then BatchNorm. [B, C, height, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, KERNEL, padding=KERNEL // 2, groups=width, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x))


class StandardisedDepthwise(nn.Conv2d):
    """The same with weights of mean 0 and deviation 1 in place of BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, KERNEL, padding=KERNEL // 2, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flatten(1)
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5)
        return F.conv2d(x, weight.view_as(self.weight), self.bias, padding=self.padding, groups=self.groups)


class Convolutions(nn.Module):
    """What queries, keys and values are made of: [B, G + N, C] → three of them, or so many as there are."""

    def __init__(self, width: int, global_tokens: int, *, rows: bool) -> None:
        super().__init__()
        self.global_tokens = global_tokens
        self.query, self.key, self.value = (Depthwise(width) for _ in range(3))
        self.rows = StandardisedDepthwise(width) if rows else None

    def forward(self, x: Tensor, size: Size) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """For queries, keys and values, and for the logits of the rows, which global tokens have none of."""
        first, rest = cut(x, self.global_tokens, 1)
        image = rest.transpose(1, 2).unflatten(2, size)  # [B, C, height, width], its channels last in memory
        made = tuple(tokens_of(part(image)) for part in (self.query, self.key, self.value))
        if self.global_tokens:
            made = tuple(torch.cat([first, t.to(first.dtype)], dim=1) for t in made)
        return made, None if self.rows is None else tokens_of(self.rows(image))


class ConvLongShortAttention(GridLongShortAttention):
    """GridLongShortAttention on what convolutions make of the tokens: no positions, for they know their neighbours.

    attention = ConvLongShortAttention(width=64, heads=1, window=8, rank=64)
    y = attention(x, size=(56, 56))      # x: [B, 56 · 56, 64]
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        rank: int,
        dropout: float = 0.0,
        global_tokens: int = 0,
        dual_norm: bool = True,
        impl: Implementation = "auto",
    ) -> None:
        super().__init__(
            width,
            heads,
            window=window,
            rank=rank,
            dropout=dropout,
            global_tokens=global_tokens,
            dual_norm=dual_norm,
            impl=impl,
        )
        self.convolutions = Convolutions(width, global_tokens, rows=rank > 0)

    def forward(self, x: Tensor, size: Size, mask: Tensor | None = None) -> Tensor:
        self.check_input(x)
        check_size(x, size, self.global_tokens)
        if mask is not None:
            raise ValueError("a convolution sees its neighbours, padding too: mask is not for it")
        (for_q, for_k, for_v), rest = self.convolutions(x, size)
        q, k, v = self.query(for_q), self.key(for_k), self.value(for_v)
        rest = x[:, self.global_tokens :] if rest is None else rest
        return attend_from(self, q, k, v, rest, None, Tiles(self.window, *size), self.global_tokens)


class ConvFullAttention(GridFullAttention):
    """Full attention on the same."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, global_tokens: int = 0) -> None:
        super().__init__(width, heads, dropout=dropout, global_tokens=global_tokens)
        self.convolutions = Convolutions(width, global_tokens, rows=False)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        check_size(x, size, self.global_tokens)
        (for_q, for_k, for_v), _ = self.convolutions(x, size)
        return self.attend(self.query(for_q), self.key(for_k), self.value(for_v), size)


def tokens_of(image: Tensor) -> Tensor:
    return image.flatten(2).transpose(1, 2)  # [B, C, height, width] → [B, N, C]
