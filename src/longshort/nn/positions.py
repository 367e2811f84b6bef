"""Relative positions: Transformer-XL's, as tables for the operation, and rotary ones, as turned queries and keys.

B batch, H heads, N tokens, R rows, D head width, T distances.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from longshort.geometry import Causal
from longshort.ops import RelativePositions


def exact(device: torch.device) -> torch.dtype:
    """What angles are computed in: float64, but for Apple's GPUs, which do not have it."""
    return torch.float32 if device.type == "mps" else torch.float64


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[T, width]: sines of the distances at width / 2 frequencies from 1 to 1 / 10,000, then their cosines."""
    angles = angles_at(distances, width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


def angles_at(distances: Tensor, width: int) -> Tensor:
    """[T, width / 2]: the distances at frequencies from 1 to 1 / 10,000."""
    exponents = torch.arange(0, width, 2, device=distances.device, dtype=exact(distances.device)) / width
    return distances[:, None] / 10_000**exponents


class TransformerXLPositions(nn.Module):
    """Tables for keys (W_R) and for rows (W_G, b_G) at each distance, and the two query biases u and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.local = nn.Linear(width, width, bias=False)
        self.rows = nn.Linear(width, width)
        self.content_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, span: int, rows: int, dtype: torch.dtype) -> RelativePositions:
        """Tables for distances 0 to span - 1 between tokens and 0 to rows - 1 between rows."""
        weight = self.local.weight
        known = sinusoids(torch.arange(max(span, rows), device=weight.device), self.width).to(weight.dtype)
        local, distant = self.local(known[:span]), self.rows(known[:rows])
        local, distant = (rearrange(t, "t (h d) -> h t d", h=self.heads) for t in (local, distant))
        return RelativePositions(*(t.to(dtype) for t in (self.content_bias, self.position_bias, local, distant)))


class RotaryPositions(nn.Module):
    """Queries, keys and rows turned by angles that grow with the position, so that scores know only distances.

    A row stands at the middle of its part of the segment. Positions count from the block's first query, not from
    the start of the text: only differences matter, and small numbers are exact.
    """

    def forward(
        self, q: Tensor, k: Tensor, k_global: Tensor, geometry: Causal, start: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q: [B, H, N, D], the first at position start of the text; k: [B, H, M, D], the last N at the same places;
        k_global: [B, H, R, D], rows of the last segments finished."""
        n, keys, rows = q.shape[2], k.shape[2], k_global.shape[2]
        turned = turns(q, n - keys, keys)
        first = geometry.rows_before(start + n) - rows - geometry.rows_before(start)  # from the query's segment on
        into = start % geometry.segment
        row_turns = turns(q, first, rows, length=geometry.segment, parts=max(geometry.rank, 1), back=into)
        return rotated(q, turned[:, keys - n :]), rotated(k, turned), rotated(k_global, row_turns)


def turns(like: Tensor, first: int, count: int, *, length: int = 1, parts: int = 1, back: int = 0) -> Tensor:
    """[2, count, D / 2]: cosines and sines at the middles of `count` parts, the first of them number `first`.

    `length` tokens have so many `parts`; places are counted from token `back` of those that part 0 is of.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    compiling = torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag
    make = _turns if compiling else _made_turns
    return make(first, count, length, parts, back, like.shape[3], dtype, like.device)


def _made_turns(
    first: int, count: int, length: int, parts: int, back: int, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    numbers = torch.arange(count, device=device, dtype=exact(device)) + first
    places = (numbers + 0.5) * (length / parts) - 0.5 - back
    angles = angles_at(places, width)
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


# An operator of its own, because the compiler would compute cosines anew for every head of every sequence.
_turns = torch.library.custom_op("longshort::turns", _made_turns, mutates_args=())
_turns.register_fake(
    lambda first, count, length, parts, back, width, dtype, device: torch.empty(
        2, count, width // 2, dtype=dtype, device=device
    )
)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """x [B, H, N, D], each pair of features (i, i + D / 2) turned by its place's angles [2, N, D / 2]."""
    cosine, sine = turn
    a, b = x.to(turn.dtype).chunk(2, dim=3)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], dim=3).to(x.dtype)
