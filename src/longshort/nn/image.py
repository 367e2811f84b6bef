"""One stage of a vision transformer: an image becomes tokens of a coarser grid, which go through blocks of attention.

B batch, C width, N tokens of a grid, row by row, G global tokens in front of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longshort.nn.blocks import DropPath, FeedForward
from longshort.nn.grid import Size, stretch

EPS = 1e-6  # of the LayerNorms beside attention


class Embedding(nn.Module):
    """A strided convolution, LayerNorm, and global tokens in front; positions, where `grid` says for how many.

    Images whose sides are no multiples of the stride get zeros at the right and at the bottom: no pixel is lost.
    """

    def __init__(
        self, channels: int, width: int, *, kernel: int, stride: int, global_tokens: int = 0, grid: Size | None = None
    ) -> None:
        super().__init__()
        self.stride = stride
        self.convolution = nn.Conv2d(channels, width, kernel, stride, padding=(kernel - stride + 1) // 2)
        self.norm = nn.LayerNorm(width, eps=EPS)
        self.global_tokens = nn.Embedding(global_tokens, width) if global_tokens else None
        self.positions = Positions(width, grid, global_tokens) if grid is not None else None

    def forward(self, image: Tensor) -> tuple[Tensor, Size]:  # [B, channels, height, width] → [B, G + N, C]
        height, width = image.shape[2:]
        image = F.pad(image, (0, -width % self.stride, 0, -height % self.stride))
        image = self.convolution(image)  # [B, C, height, width], of the grid now
        size = (image.shape[2], image.shape[3])
        x = self.norm(image.flatten(2).transpose(1, 2))
        if self.global_tokens is not None:
            x = torch.cat([self.global_tokens.weight.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        return (x if self.positions is None else x + self.positions(size).to(x.dtype)), size


class Positions(nn.Module):
    """Learned and absolute: half of the features tell the row, half the column. Interpolated for other grids."""

    def __init__(self, width: int, grid: Size, global_tokens: int) -> None:
        super().__init__()
        self.rows, self.columns = (nn.Embedding(side, width // 2) for side in grid)
        self.global_tokens = nn.Embedding(global_tokens, width) if global_tokens else None

    def forward(self, size: Size) -> Tensor:  # [G + N, C]
        rows, columns = (stretched(t.weight, side) for t, side in zip((self.rows, self.columns), size, strict=True))
        both = [rows[:, None].expand(-1, size[1], -1), columns.expand(size[0], -1, -1)]
        grid = torch.cat(both, dim=2).flatten(0, 1)
        return grid if self.global_tokens is None else torch.cat([self.global_tokens.weight, grid])


def stretched(table: Tensor, length: int) -> Tensor:
    """A table [places, C] for more or fewer places, by linear interpolation."""
    if len(table) == length:
        return table
    return stretch(len(table), length, table, "linear") @ table


class Block(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, attention: nn.Module, width: int, *, inner: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=EPS)
        self.attention = attention
        self.feedforward_norm = nn.LayerNorm(width, eps=EPS)
        self.feedforward = FeedForward(width, inner, dropout=dropout)
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)

    def forward(self, x: Tensor, size: Size) -> Tensor:  # [B, G + N, C]
        x = x + self.drop_path(self.dropout(self.attention(self.attention_norm(x), size)))
        return x + self.drop_path(self.dropout(self.feedforward(self.feedforward_norm(x))))


class Stage(nn.Module):
    """An embedding and blocks. `checkpointed`: in training, blocks are computed again for the gradients rather than
    kept, for less memory."""

    def __init__(self, embedding: Embedding, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.checkpointed = False

    def forward(self, image: Tensor) -> tuple[Tensor, Size]:
        x, size = self.embedding(image)
        for block in self.blocks:
            if self.checkpointed and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, size, use_reentrant=False, context_fn=partial(first_and_again, block))
            else:
                x = block(x, size)
        return x, size

    @property
    def global_tokens(self) -> int:
        tokens = self.embedding.global_tokens
        return 0 if tokens is None else tokens.num_embeddings


def first_and_again(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around a block's first pass and around its second, which must not count for BatchNorm's averages again."""
    return nullcontext(), averages_kept(block)


@contextmanager
def averages_kept(module: nn.Module) -> Iterator[None]:
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
