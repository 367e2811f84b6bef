"""The order in which long-short attention reads tokens whose padding or global tokens stand anywhere.

Global tokens are read first, then all other real ones, as close together as if nothing stood between them: so neither
the amount nor the side of the padding changes what a token comes to.

B batch, N tokens, M places to read from, C width, G global tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longshort.ops.check import check_mask


class Order(NamedTuple):
    """places: where each token is read, [B, N]; tokens: what stands at each place, [B, M]; both None where tokens are
    read as they stand. mask: of the places, True on real tokens, [B, M]; None where all are."""

    global_tokens: int
    mask: Tensor | None
    places: Tensor | None = None
    tokens: Tensor | None = None

    def read(self, x: Tensor) -> Tensor:  # [B, N, C] → [B, M, C]
        return x if self.tokens is None else _taken(x, self.tokens)

    def put_back(self, y: Tensor) -> Tensor:  # [B, M, C] → [B, N, C]
        return y if self.places is None else _taken(y, self.places)


def first_tokens(x: Tensor, mask: Tensor | None, count: int) -> Order:
    """The first `count` real tokens of each sequence are global. x: [B, N, ...]; mask: [B, N], True on real tokens."""
    check_mask("mask", mask, x, x.shape[1])
    if mask is None and x.shape[1] > count:
        return Order(count, None)
    real = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    return _ordered(real, real & (real.cumsum(1) <= count), count, max(x.shape[1], count + 1))


def marked_tokens(x: Tensor, mask: Tensor | None, marked: Tensor) -> Order:
    """The real tokens that are marked, [B, N], are global; there may be another number of them in each sequence."""
    check_mask("mask", mask, x, x.shape[1])
    check_mask("marked", marked, x, x.shape[1])
    real = torch.ones_like(marked) if mask is None else mask
    counts = (marked & real).sum(1)
    most, rest = torch.stack([counts.max(), (real.sum(1) - counts).max()]).tolist()
    return _ordered(real, marked & real, most, most + rest + 1)


def _ordered(real: Tensor, marked: Tensor, count: int, places: int) -> Order:
    """Padding is read from the last place, which no real token has where there is any padding."""
    at = torch.where(marked, marked.cumsum(1) - 1, count + (real & ~marked).cumsum(1) - 1)
    at = at.where(real, places - 1)  # [B, N]
    mask = torch.zeros(len(real), places, dtype=torch.bool, device=real.device).scatter(1, at, real)
    stand = torch.arange(real.shape[1], device=real.device)
    if places == real.shape[1] and not torch.compiler.is_compiling():  # which could not wait for the answer
        in_place, whole = torch.stack([((at == stand) | ~real).all(), real.all()]).tolist()
        if in_place:
            return Order(count, None if whole else mask)
    tokens = torch.zeros(mask.shape, dtype=torch.long, device=real.device)
    tokens = tokens.scatter(1, at, stand.expand_as(at))  # [B, M]
    return Order(count, mask, at, tokens)


def _taken(x: Tensor, at: Tensor) -> Tensor:
    """Along dimension 1; torch.take_along_dim would be compiled anew for every length."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
