"""How many labels a model finds: sequences in the order of their length, so that little is padded.

B sequences of a batch, L length, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.labelled import Numbers
from longshort.lab.evaluate.evaluator import Advance, Share, Workers

Batch = tuple[tuple[Tensor, ...], Tensor]  # what the model is given, each [B, L], and labels [B]


@dataclass(frozen=True, eq=False)
class Accuracy:
    """A classifier on examples. lengths: of all, [I]; read: a batch of some; batch: how many at once."""

    name: str
    lengths: Numbers
    read: Callable[[Numbers], Batch]
    batch: int

    @property
    def size(self) -> int:
        return len(self.lengths)

    @torch.no_grad()
    def run(self, model: nn.Module, processes: Workers, advance: Advance) -> dict[str, Share]:
        device = next(model.parameters()).device
        right, loss, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
        for items in in_order(self.lengths, self.batch, processes.index, processes.count):
            inputs, labels = self.read(items)
            labels = labels.to(device)
            scores = scores_of(model(*(t.to(device) for t in inputs))).float()  # [B, K]
            right += (scores.argmax(1) == labels).sum()
            loss += F.cross_entropy(scores, labels, reduction="sum")
            count += len(items)
            advance(len(items))
        return {"accuracy": Share(right.item(), count), "loss": Share(loss.item(), count)}


def scores_of(output: Any) -> Tensor:
    """What a model of ours gives; of transformers', the logits among what it gives."""
    scores: Tensor = output if isinstance(output, Tensor) else output.logits
    return scores


def in_order(lengths: Numbers, at_once: int, part: int, parts: int) -> Iterator[Numbers]:
    """Batches of sequences of similar lengths: every `parts`-th one, from number `part` on."""
    order = np.argsort(lengths, kind="stable")
    for at in range(part * at_once, len(order), parts * at_once):
        yield order[at : at + at_once]
