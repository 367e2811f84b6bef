"""Which part of every batch a process reads.

A batch is divided over count = processes × gradient accumulation shards; index says which of them this one is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of `count` disjoint, equal parts of a batch."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count of shards must be at least 1, got {self.count}")
        if not 0 <= self.index < self.count:
            raise ValueError(f"index of a shard must be from 0 to {self.count - 1}, got {self.index}")

    def part(self, total: int) -> slice:
        """The items of this shard among `total`."""
        if total % self.count:
            raise ValueError(
                f"a batch of {total} cannot be divided over {self.count} processes × gradient accumulation"
            )
        size = total // self.count
        return slice(self.index * size, (self.index + 1) * size)


WHOLE = Shard()
