"""Who sees whom: the three geometries of long-short attention, as predicates in plain arithmetic.

`sees(i, j)` says whether the query at position i sees the key at position j; `sees_row(i, row)` whether it sees a
global row. They work on Python, numpy, torch and jax integers alike, they draw the figures, and they are the mask of
the dense reference. Every other implementation is an optimisation of what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


def _reach(window: int) -> int:
    """How many tokens beyond its home segment a token sees on either side."""
    return max(window // 2, 1) if window else 0


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, float) or size < 0:
            raise ValueError(f"{name} must be a whole number and not negative, got {size}")


@dataclass(frozen=True)
class Segments:
    """Bidirectional, 1D: a token sees its home segment of `window` tokens and `reach` tokens on either side of it."""

    window: int

    def __post_init__(self) -> None:
        _check_sizes(window=self.window)

    @property
    def reach(self) -> int:
        return _reach(self.window)

    def sees(self, i: Any, j: Any) -> Any:
        home = i // max(self.window, 1) * self.window
        return (j >= home - self.reach) & (j < home + self.window + self.reach)

    def sees_row(self, i: Any, row: Any) -> Any:
        return (i == i) & (row == row)  # everyone sees every row; written so that arrays broadcast


@dataclass(frozen=True)
class Causal:
    """Causal, 1D: a token sees a window of its past, and the `rank` rows of each segment finished before its own began.

    `sliding`: the last `window` tokens, itself included.
    `segment`: the home segment of `window` tokens up to itself, and the `window` tokens left of that segment.
    """

    window: int
    segment: int
    rank: int
    kind: Literal["sliding", "segment"] = "sliding"

    def __post_init__(self) -> None:
        _check_sizes(window=self.window, segment=self.segment, rank=self.rank)
        if self.kind not in ("sliding", "segment"):
            raise ValueError(f"kind must be 'sliding' or 'segment', got {self.kind!r}")
        if self.window < 1 or self.segment < 1:
            raise ValueError(f"window and segment must be at least 1, got window {self.window}, segment {self.segment}")
        if self.kind == "sliding" and self.window < self.segment:
            raise ValueError(
                f"window {self.window} is shorter than segment {self.segment}: "
                "tokens in between would be seen by no one"
            )

    @property
    def span(self) -> int:
        """Distances t - j at which a local key can be seen: 0 to span - 1."""
        return self.window if self.kind == "sliding" else 2 * self.window

    @property
    def kept(self) -> int:
        """Tokens of the past that a later one, or the rows of its segment, can need."""
        return max(self.window, self.span - 1, self.segment - 1)

    def sees(self, i: Any, j: Any) -> Any:
        first = i - self.window + 1 if self.kind == "sliding" else (i // self.window - 1) * self.window
        return (j >= first) & (j <= i)

    def sees_row(self, i: Any, row: Any) -> Any:
        return row < self.rows_before(i)

    def rows_before(self, i: Any) -> Any:
        """How many rows, counted from the start of the text, the query at position i sees."""
        return i // self.segment * self.rank


@dataclass(frozen=True)
class Tiles:
    """2D: tokens of a height × width grid, row by row; a token sees its home group of window × window tokens, grown by
    `reach` on all four sides."""

    window: int
    height: int
    width: int

    def __post_init__(self) -> None:
        _check_sizes(window=self.window)
        if any(isinstance(side, float) or side < 1 for side in (self.height, self.width)):
            raise ValueError(f"size must be whole numbers of at least 1, got ({self.height}, {self.width})")

    @property
    def axis(self) -> Segments:
        """The same rule along one axis: a tile is a segment of rows crossed with a segment of columns."""
        return Segments(self.window)

    @property
    def reach(self) -> int:
        return _reach(self.window)

    @property
    def offsets(self) -> int:
        """Side of the table of offsets (dy, dx) between a token and what it sees, both from -(offsets // 2)."""
        return 2 * (self.window + self.reach) - 1 if self.window else 0

    def sees(self, i: Any, j: Any) -> Any:
        return self.axis.sees(i // self.width, j // self.width) & self.axis.sees(i % self.width, j % self.width)

    def sees_row(self, i: Any, row: Any) -> Any:
        return (i == i) & (row == row)


Geometry = Segments | Causal | Tiles
