"""Language modelling over bytes: contiguous lanes, a cache from batch to batch, bits per character."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.lanes import Lanes
from longshort.lab.data.shard import Shard
from longshort.lab.data.source import Source
from longshort.lab.data.splits import Splits
from longshort.lab.evaluate import Evaluator
from longshort.lab.evaluate.bits import BitsPerCharacter, Reading
from longshort.lab.tasks.task import Split
from longshort.serial import registered

READING = Reading()


@registered("LanguageModelling")
@dataclass(frozen=True)
class LanguageModelling:
    """`sequences` lanes of the text are read side by side, `length` characters a step, with the model's caches.

    dev_bytes: how much of the development text is evaluated while training (all of it: None), by `evaluation`.
    """

    source: Source
    length: int
    sequences: int
    dev_bytes: int | None = None
    evaluation: Reading = READING

    metric: ClassVar[str] = "bpc"
    higher_is_better: ClassVar[bool] = False
    unit: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        if self.length < 1 or self.sequences < 1:
            raise ValueError(
                f"length and sequences must be at least 1, got length {self.length}, sequences {self.sequences}"
            )

    @cached_property
    def splits(self) -> Splits:
        splits = self.source.splits()
        if len(splits.dev) < 2:
            count = len(splits.dev)
            raise ValueError(f"the development text has {count} bytes, and nothing to predict: give more text")
        return splits

    def fingerprint(self) -> str:
        return self.splits.fingerprint()

    @cached_property
    def lanes(self) -> Lanes:
        return Lanes(self.splits.train, self.sequences, self.length)

    def batch(self, step: int, part: int, parts: int) -> Tensor:
        return self.lanes.batch(step, Shard(part, parts))

    def prepare(self, batch: Any) -> Any:
        return batch

    def size(self, batch: Tensor) -> int:
        return batch.shape[0] * (batch.shape[1] - 1)

    def loss(self, model: nn.Module, batch: Tensor, carry: Any) -> tuple[Tensor, Any]:
        batch = batch.long()
        logits, carry = model(batch[:, :-1], carry)
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()), carry

    def evaluators(self, split: Split) -> Iterable[Evaluator]:
        text = self.splits.dev[: self.dev_bytes] if split == "dev" else self.splits.test
        yield BitsPerCharacter(split, text, self.evaluation, self.length)
