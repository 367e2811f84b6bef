"""Full attention over the tokens of an image, with biases of their relative positions.

B batch, N tokens, C width, H heads, D head width, G global tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from longshort.ops.check import check_size

Size = tuple[int, int]  # height and width of a grid


class GridFullAttention(nn.Module):
    """All tokens of an image see all, and the `global_tokens` first ones of x.

    size: with it, a bias per head is learned for each offset in a grid of that size, and for every pair with a global
    token in it. On a grid of another size, the offsets' table is interpolated.

        attention = GridFullAttention(width=384, heads=6, size=(14, 14), global_tokens=1)
        y = attention(x, size=(14, 10))      # x: [B, 1 + 14 · 10, 384]
    """

    def __init__(
        self, width: int, heads: int, *, size: Size | None = None, dropout: float = 0.0, global_tokens: int = 0
    ) -> None:
        super().__init__()
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        self.width, self.heads, self.dropout, self.global_tokens = width, heads, dropout, global_tokens
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        g, biased = global_tokens, size is not None
        self.relative_bias = nn.Parameter(torch.zeros(heads, *offsets(size))) if size is not None else None
        self.to_global_bias = nn.Parameter(torch.zeros(heads, g)) if biased and g else None  # from the grid's tokens
        self.from_global_bias = nn.Parameter(torch.zeros(heads, g)) if biased and g else None  # to the grid's tokens
        self.among_global_bias = nn.Parameter(torch.zeros(heads, g, g)) if biased and g else None

    def forward(self, x: Tensor, size: Size) -> Tensor:  # [B, G + N, C]
        check_size(x, size, self.global_tokens)
        return self.attend(self.query(x), self.key(x), self.value(x), size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, size: Size) -> Tensor:
        """From queries, keys and values, [B, G + N, C]."""
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in (q, k, v))
        bias, dropout = self.bias(size), self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, None if bias is None else bias.to(q.dtype), dropout_p=dropout)
        return self.out(rearrange(y, "b h n d -> b n (h d)"))

    def bias(self, size: Size) -> Tensor | None:
        """[H, G + N, G + N], or nothing."""
        if self.relative_bias is None:
            return None
        local = of_pairs(resized(self.relative_bias, offsets(size)), size)
        if self.to_global_bias is None or self.from_global_bias is None or self.among_global_bias is None:
            return local
        n = size[0] * size[1]
        first = torch.cat([self.among_global_bias, self.from_global_bias[:, :, None].expand(-1, -1, n)], dim=2)
        rest = torch.cat([self.to_global_bias[:, None].expand(-1, n, -1), local], dim=2)
        return torch.cat([first, rest], dim=1)

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, dropout={self.dropout}, global_tokens={self.global_tokens}"


def offsets(size: Size) -> Size:
    """How many offsets there are between tokens of a grid, along its two axes."""
    return 2 * size[0] - 1, 2 * size[1] - 1


def resized(table: Tensor, size: Size) -> Tensor:
    """A table [H, offsets, offsets] for more or fewer offsets, by cubic interpolation; itself where nothing changes."""
    if tuple(table.shape[1:]) == size:
        return table
    down, right = (stretch(n, side, table, "bicubic") for n, side in zip(table.shape[1:], size, strict=True))
    return down @ table @ right.mT


@torch.no_grad()
def stretch(length: int, wanted: int, like: Tensor, mode: Literal["linear", "bicubic"]) -> Tensor:
    """[wanted, length]: weights that make so many places of a line out of others. Of an odd number of places, the
    middle one stays the middle. A product with them has gradients that are the same every time, on a GPU too."""
    exact = torch.promote_types(like.dtype, torch.float32)
    lines = torch.eye(length, dtype=exact, device=like.device)[None, :, :, None]  # each place alone
    flat = "bilinear" if mode == "linear" else mode
    return F.interpolate(lines, size=(wanted, 1), mode=flat, align_corners=False)[0, :, :, 0].mT.to(like.dtype)


def of_pairs(table: Tensor, size: Size) -> Tensor:
    """The entry of every query and key [H, N, N], from a table of the offsets (dy, dx) from key to query."""
    height, width = size
    # Windows of the turned table, as long as a line of keys: that of query y starts where key 0 is y lines above it.
    pairs = table.flip(1, 2).unfold(1, height, 1).unfold(2, width, 1).flip(1, 2)  # [H, y, x, y of key, x of key]
    return rearrange(pairs, "h a b c d -> h (a b) (c d)")
