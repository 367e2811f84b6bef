"""The order in which examples are learned from: all of them once, in a new order every time.

I items, B items of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic

import numpy as np

from longshort.lab.data.labelled import Items, LabelledSource, LabelledSplits, Numbers
from longshort.lab.data.shard import WHOLE, Shard


@dataclass(frozen=True)
class Epochs:
    """Batches depend on the step alone. What is left of an epoch after its last whole batch is left out."""

    items: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.items:
            raise ValueError(
                f"a batch of {self.batch} cannot be taken from {self.items} examples: it must be smaller, or they more"
            )

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return self.items // self.batch

    def at(self, step: int, shard: Shard = WHOLE) -> Numbers:
        """Which items the batch of a step is made of."""
        epoch, place = divmod(step, self.steps)
        batch = _order(self.items, self.seed, epoch)[place * self.batch : (place + 1) * self.batch]
        return batch[shard.part(self.batch)]


class InEpochs(Generic[Items]):
    """What tasks have in common that learn from a labelled source, `sequences` at a step. order: seed of the epochs."""

    source: LabelledSource[Items]
    sequences: int
    order: int

    @cached_property
    def splits(self) -> LabelledSplits[Items]:
        return self.source.splits()

    def fingerprint(self) -> str:
        return self.splits.fingerprint()

    @cached_property
    def epochs(self) -> Epochs:
        return Epochs(len(self.splits.train), self.sequences, self.order)


@lru_cache(maxsize=4)
def _order(items: int, seed: int, epoch: int) -> Numbers:
    return np.random.default_rng([seed, epoch]).permutation(items)
