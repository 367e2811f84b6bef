"""Which queries form a block, and which keys its tile: the plan that `chunked` follows.

A block is a whole number of windows, so what its queries see of its tile is one pattern, the same for all blocks. A
sequence is a grid of width 1.

N queries, M keys, R rows, G blocks, C queries of a block, K keys of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry, Segments, Tiles


@dataclass(frozen=True)
class Axis:
    """Blocks along one axis: `block` queries share the `before + block + after` keys around them."""

    rule: Segments | Causal
    block: int
    before: int
    after: int

    def tiles(self, length: int, lead: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the queries [G, C] and the keys [G, K] of the blocks over -lead to length."""
        # To the compiler one block is a special case and two or more are not: a spare one spares it a second graph.
        spare = self.block if torch.compiler.is_compiling() and self.block > 1 else 0
        count = (lead + length + spare + self.block - 1) // self.block
        home = torch.arange(count, device=device)[:, None] * self.block - lead
        return home + torch.arange(self.block, device=device), home + self._around(device)

    def pattern(self, device: torch.device) -> Tensor:
        """[C, K], who sees whom in a block."""
        return self.rule.sees(torch.arange(self.block, device=device)[:, None], self._around(device))

    def _around(self, device: torch.device) -> Tensor:
        return torch.arange(-self.before, self.block + self.after, device=device)


POINT = Axis(Segments(1), 1, 0, 0)  # the second axis of a sequence


def axes_of(geometry: Geometry) -> tuple[Axis, Axis]:
    """Blocks large enough for efficient matrix products, small enough that queries see most of their tile."""
    if isinstance(geometry, Causal):
        unit = geometry.segment if geometry.kind == "sliding" else math.lcm(geometry.segment, geometry.window)
        block = _whole(max(geometry.window // 2, 32), unit)  # tiles copy each key at most three times
        return Axis(geometry, block, geometry.window, 0), POINT
    if isinstance(geometry, Tiles):
        axis = Axis(geometry.axis, _whole(5, geometry.window), geometry.reach, geometry.reach)
        return axis, axis
    return Axis(geometry, _whole(32, geometry.window), geometry.reach, geometry.reach), POINT


def _whole(size: int, unit: int) -> int:
    """At least `size`, a whole number of units."""
    return -(-size // unit) * unit if unit else size


@dataclass(frozen=True)
class Plan:
    queries: Tensor  # [G·C], the query that stands there; any where a block juts out
    inverse: Tensor  # [N], where each query stands
    keys: Tensor  # [G, K], the key that stands there; any where there is none
    present: Tensor  # [1 or B, G, K], whether there is one
    pattern: Tensor  # [C, K], who sees whom in a block
    offsets: Tensor | None  # [C, K], where in the flat bias table, for Tiles
    mask_global: Tensor | None  # [B, R]
    causal: Causal | None
    first: int  # for Causal: position in the text of the first query of the first block
    first_row: int  # for Causal: number, counted from the start of the text, of the first row

    @property
    def block(self) -> int:
        return self.pattern.shape[0]

    def blocks(self, q: Tensor) -> Tensor:
        """Tokens [B, H, N, D] in blocks [B, H, G, C, D]."""
        return q.index_select(2, self.queries).unflatten(2, (-1, self.block))

    def tokens(self, out: Tensor) -> Tensor:
        """Blocks as tokens again."""
        return out.flatten(2, 3).index_select(2, self.inverse)

    def tile(self, k: Tensor, a: int, b: int) -> Tensor:
        """The tiles [B, H, G, K, D] of the blocks a to b."""
        return k.index_select(2, self.keys[a:b].flatten()).unflatten(2, (b - a, self.keys.shape[1]))

    def tile_bias(self, bias: Tensor) -> Tensor:
        """The bias [H, C, K] of a tile, from a table over offsets."""
        assert self.offsets is not None
        return bias.flatten(1)[:, self.offsets]

    def tiles_seen(self, a: int, b: int) -> Tensor:
        """[1 or B, 1, G, C, K], which keys of their tiles the queries of the blocks a to b see."""
        return self.pattern & self.present[:, None, a:b, None]

    def rows_seen(self, a: int, b: int, rows: int) -> Tensor | None:
        """[1 or B, 1, G, C, rows], which of the first `rows` rows the queries of the blocks a to b see; None: all."""
        seen = None if self.mask_global is None else self.mask_global[:, None, None, None, :rows]
        if self.causal is not None:
            device = self.pattern.device
            i = self.first + torch.arange(a * self.block, b * self.block, device=device).view(1, 1, -1, self.block, 1)
            sees = self.causal.sees_row(i, self.first_row + torch.arange(rows, device=device))
            seen = sees if seen is None else seen & sees
        return seen

    def rows_until(self, b: int, rows: int) -> int:
        """How many of the rows the queries of the blocks before b can see."""
        if self.causal is None:
            return rows
        return max(0, min(rows, self.causal.rows_before(self.first + b * self.block - 1) - self.first_row))


def make_plan(
    geometry: Geometry,
    queries: int,
    keys: int,
    rows: int,
    start: int,
    mask: Tensor | None,
    mask_global: Tensor | None,
    device: torch.device,
) -> Plan:
    axis_y, axis_x = axes_of(geometry)
    causal = geometry if isinstance(geometry, Causal) else None
    lead = start % axis_y.block if causal else 0  # blocks start where windows and segments do
    height, width = (geometry.height, geometry.width) if isinstance(geometry, Tiles) else (queries, 1)
    earlier = keys - queries  # cached keys in front of the queries' own
    (q_y, k_y), (q_x, k_x) = axis_y.tiles(height, lead, device), axis_x.tiles(width, 0, device)
    pattern_y, pattern_x = axis_y.pattern(device), axis_x.pattern(device)

    index = _cross(q_y, q_x, width).flatten()
    here = _cross(k_y + earlier, k_x, width)
    inside = (k_y + earlier >= 0) & (k_y < height), (k_x >= 0) & (k_x < width)
    present = (inside[0][:, None, :, None] & inside[1][None, :, None, :]).flatten(2).flatten(0, 1)[None]
    here = here.clamp(0, keys - 1)
    if mask is not None:
        present = present & mask[:, here]
    token_y, token_x = torch.arange(height, device=device) + lead, torch.arange(width, device=device)
    block_y, block_x = token_y // axis_y.block, token_x // axis_x.block
    corner = (block_y[:, None] * q_x.shape[0] + block_x) * (axis_y.block * axis_x.block)
    inverse = corner + (token_y % axis_y.block)[:, None] * axis_x.block + token_x % axis_x.block
    return Plan(
        queries=index.clamp(0, queries - 1),
        inverse=inverse.flatten(),
        keys=here,
        present=present,
        pattern=(pattern_y[:, None, :, None] & pattern_x[None, :, None, :]).flatten(2).flatten(0, 1),
        offsets=_offsets(geometry, axis_y, device) if isinstance(geometry, Tiles) else None,
        mask_global=mask_global,
        causal=causal,
        first=start - lead,
        first_row=causal.rows_before(start + queries) - rows if causal else 0,
    )


def _cross(y: Tensor, x: Tensor, width: int) -> Tensor:
    """Token numbers [Gy·Gx, Py·Px] of the places y [Gy, Py] crossed with x [Gx, Px]."""
    return (y[:, None, :, None] * width + x[None, :, None, :]).flatten(2).flatten(0, 1)


def _offsets(geometry: Tiles, axis: Axis, device: torch.device) -> Tensor:
    """[C, K], the entry of the flat bias table for the offset from each key of a tile to each query of its block."""
    i = torch.arange(axis.block, device=device)[:, None]
    d = i - torch.arange(-axis.before, axis.block + axis.after, device=device) + geometry.offsets // 2
    d = d.clamp(0, max(geometry.offsets - 1, 0))  # what lies outside the table is not seen
    return (d[:, None, :, None] * geometry.offsets + d[None, :, None, :]).flatten(2).flatten(0, 1)
