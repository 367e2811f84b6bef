"""Which queries form a block, and which keys its tile: the plan that `chunked` follows.

A sequence is a grid of width 1. Where blocks are whole windows, or the window slides, what the queries of a block see
of its tile is one pattern, the same for all blocks.

N queries, M keys, R rows, G blocks, C queries of a block, K keys of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry, Segments, Tiles


@dataclass(frozen=True)
class Axis:
    """Blocks along one axis: `block` queries share the `before + block + after` keys around them."""

    block: int
    before: int
    after: int

    def tiles(self, length: int, lead: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the queries [G, C] and the keys [G, K] of the blocks over -lead to length."""
        # To the compiler one block is a special case and two or more are not: a spare one spares it a second graph.
        spare = self.block if torch.compiler.is_compiling() and self.block > 1 else 0
        count = (lead + length + spare + self.block - 1) // self.block
        home = torch.arange(count, device=device)[:, None] * self.block - lead
        around = torch.arange(-self.before, self.block + self.after, device=device)
        return home + torch.arange(self.block, device=device), home + around


POINT = Axis(1, 0, 0)  # the second axis of a sequence


def causal_axis(geometry: Causal, length: int) -> Axis:
    """Whole segments, about half a span long, so that a tile copies each key about three times."""
    block = _whole(max(geometry.span // 2, 32), geometry.segment)
    if not torch.compiler.is_compiling():
        block = min(block, _whole(length, geometry.segment))
    return Axis(block, geometry.span, 0)


def segments_axis(rule: Segments, length: int, least: int) -> Axis:
    """Whole windows, of `least` queries or more, which is what makes matrix products efficient."""
    if not torch.compiler.is_compiling() and rule.window >= length:
        return Axis(length, 0, 0)  # one window over all
    return Axis(_whole(least, rule.window), rule.reach, rule.reach)


def _whole(size: int, unit: int) -> int:
    """At least `size`, a whole number of units."""
    return (size + unit - 1) // unit * unit if unit else size


@dataclass(frozen=True)
class Plan:
    queries: Tensor  # [G·C], the query that stands there; any where a block juts out
    inverse: Tensor  # [N], where each query stands
    keys: Tensor  # [G, K], the key that stands there; any where there is none
    present: Tensor  # [1 or B, G, K], whether there is one
    pattern: Tensor  # [1 or G, C, K], who sees whom in a block
    offsets: Tensor | None  # [C, K], where in the flat bias table, for Tiles
    mask_global: Tensor | None  # [B, R]
    causal: Causal | None
    first: int  # for Causal: position in the text of the first query of the first block
    first_row: int  # for Causal: number, counted from the start of the text, of the first row

    @property
    def block(self) -> int:
        return self.pattern.shape[1]

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
        pattern = self.pattern if self.pattern.shape[0] == 1 else self.pattern[a:b]
        return pattern & self.present[:, None, a:b, None]

    def rows_seen(self, a: int, b: int, rows: int) -> Tensor | None:
        """[1 or B, 1, G, C, any], which of the last of the first `rows` rows the queries of the blocks a to b see.

        Those before them, or where it is None all rows, are seen by all.
        """
        real = None if self.mask_global is None else self.mask_global[:, None, None, None, :rows]
        if self.causal is None:
            return real
        last = rows
        if real is None and not torch.compiler.is_compiling():  # all see the rows of segments before the chunk
            last = min(rows, (b - a) * self.block // self.causal.segment * self.causal.rank)
        device = self.pattern.device
        i = self.first + torch.arange(a * self.block, b * self.block, device=device).view(1, 1, -1, self.block, 1)
        sees = self.causal.sees_row(i, self.first_row + torch.arange(rows - last, rows, device=device))
        return sees if real is None else sees & real

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
    causal = geometry if isinstance(geometry, Causal) else None
    height, width = (geometry.height, geometry.width) if isinstance(geometry, Tiles) else (queries, 1)
    if isinstance(geometry, Tiles):
        axis_y, axis_x = (segments_axis(geometry.axis, side, least=5) for side in (height, width))
    elif isinstance(geometry, Segments):
        axis_y, axis_x = segments_axis(geometry, queries, least=32), POINT
    else:
        axis_y, axis_x = causal_axis(geometry, queries), POINT
    lead = start % axis_y.block if causal else 0  # blocks start where segments do
    earlier = keys - queries  # cached keys in front of the queries' own
    (q_y, k_y), (q_x, k_x) = axis_y.tiles(height, lead, device), axis_x.tiles(width, 0, device)

    index = _cross(q_y * width, q_x)
    here = _cross((k_y + earlier) * width, k_x).clamp(0, keys - 1)
    inside = _cross((k_y + earlier >= 0) & (k_y < height), (k_x >= 0) & (k_x < width))[None]
    present = inside if mask is None else inside & mask[:, here]
    token_y, token_x = torch.arange(height, device=device)[:, None] + lead, torch.arange(width, device=device)
    corner = token_y // axis_y.block * q_x.shape[0] + token_x // axis_x.block  # the block that a token is in
    inverse = (corner * axis_y.block + token_y % axis_y.block) * axis_x.block + token_x % axis_x.block
    return Plan(
        queries=index.flatten().clamp(0, queries - 1),
        inverse=inverse.flatten(),
        keys=here,
        present=present,
        pattern=_pattern(geometry, (q_y + start, k_y + start), (q_x, k_x)),
        offsets=_offsets(geometry, (q_y, k_y), (q_x, k_x)) if isinstance(geometry, Tiles) else None,
        mask_global=mask_global,
        causal=causal,
        first=start - lead,
        first_row=causal.rows_before(start + queries) - rows if causal else 0,
    )


def _cross(y: Tensor, x: Tensor) -> Tensor:
    """y [Gy, Py] crossed with x [Gx, Px], as [Gy·Gx, Py·Px]: their sums, or, of truths, where both are true."""
    y, x = y[:, None, :, None], x[None, :, None, :]
    return (y & x if y.dtype == torch.bool else y + x).flatten(2).flatten(0, 1)


def _pattern(geometry: Geometry, y: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> Tensor:
    """[1 or G, C, K], who sees whom in the first block, and so in all, or in each. y, x: places of queries and keys."""
    (q_y, k_y), (q_x, k_x) = y, x
    if isinstance(geometry, Causal):
        blocks = 1 if geometry.kind == "sliding" else q_y.shape[0]
        return geometry.sees(q_y[:blocks, :, None], k_y[:blocks, None])
    axis = geometry.axis if isinstance(geometry, Tiles) else geometry
    sees_y = axis.sees(q_y[0, :, None], k_y[0])
    if isinstance(geometry, Segments):
        return sees_y[None]
    sees_x = axis.sees(q_x[0, :, None], k_x[0])
    return _cross(sees_y, sees_x)[None]


def _offsets(geometry: Tiles, y: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> Tensor:
    """[C, K], the entry of the flat bias table for the offset from each key of a tile to each query of its block."""
    last = max(geometry.offsets - 1, 0)  # what lies outside the table is not seen
    d_y, d_x = ((q[0, :, None] - k[0] + geometry.offsets // 2).clamp(0, last) for q, k in (y, x))
    return _cross(d_y * geometry.offsets, d_x)
