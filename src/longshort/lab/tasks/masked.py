"""Masked language modelling on the sequences of a task: some tokens are hidden, and the model says which they were.

B sequences of a batch, L length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.labelled import Numbers
from longshort.lab.data.shard import Shard
from longshort.lab.evaluate import Evaluator
from longshort.lab.evaluate.hidden import HiddenTokens
from longshort.lab.evaluate.labels import scores_of
from longshort.lab.tasks.classify import Classification
from longshort.lab.tasks.task import Split
from longshort.serial import registered

Masked = tuple[Tensor, Tensor]  # tokens of which some are `mask`, and what stood there, elsewhere 0; both [B, L]


@dataclass(frozen=True)
class Masking(Classification):
    """Of each sequence a share of the tokens is hidden; the labels are not used.

    A batch depends on the step alone, what it hides included. `evaluation_count` sequences of dev are evaluated, the
    same ones with the same tokens hidden every time.
    """

    share: float = 0.15
    evaluation_count: int = 2_000

    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise ValueError(f"share must lie between 0 and 1, got {self.share}")

    def batch(self, step: int, part: int, parts: int) -> Any:
        items = self.epochs.at(step, Shard(part, parts))
        random = np.random.default_rng([self.order, step, part, parts])
        return self.hide(self.splits.train, items, random, self.multiple)

    def hide(self, items: Any, which: Numbers, random: np.random.Generator, multiple: int = 1) -> tuple[Tensor, ...]:
        """Some items as the model is given them, and what is hidden of them."""
        raise NotImplementedError

    def restored(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of the losses of hidden tokens, how many there are, and how many of them the model finds."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        total, count, _ = self.restored(model, batch)
        return total / count.clamp(min=1), None

    def evaluators(self, split: Split) -> Iterable[Evaluator]:
        """Of the development set alone: there is nothing to choose by another one."""
        if split == "dev":
            items = self.splits.dev
            count = self.evaluation_count
            chosen = np.sort(np.random.default_rng(0).permutation(len(items))[:count])
            lengths = items.lengths[chosen].clip(max=self.length)
            hide = partial(self.hide_alike, items, chosen)
            yield HiddenTokens(split, lengths, hide, self.restored, self.evaluation_batch)

    def hide_alike(self, items: Any, chosen: Numbers, which: Numbers) -> tuple[Tensor, ...]:
        """The same tokens of the same sequences every time."""
        return self.hide(items, chosen[which], np.random.default_rng(int(which[0])))


@registered("MaskedModelling")
@dataclass(frozen=True)
class MaskedModelling(Masking):
    """What is hidden is replaced by the token `mask`."""

    mask: int = 511

    def hide(self, items: Any, which: Numbers, random: np.random.Generator, multiple: int = 1) -> Masked:
        whole = items.sequences.padded(which, self.length, multiple)
        hidden = (random.random(whole.shape, dtype=np.float32) < self.share) & (whole != 0)
        shown = np.where(hidden, np.int16(self.mask), whole)
        return torch.from_numpy(shown), torch.from_numpy(np.where(hidden, whole, np.int16(0)))

    def size(self, batch: Any) -> int:
        return int(batch[0].count_nonzero())

    def restored(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        tokens, hidden = batch[0], batch[1].long()
        scores = scores_of(model(tokens)).float()  # [B, L, V]
        loss = F.cross_entropy(scores.flatten(0, 1), hidden.flatten(), ignore_index=0, reduction="sum")
        at = hidden != 0
        return loss, at.sum(), ((scores.argmax(2) == hidden) & at).sum()
