"""Classification of sequences: the label of each, and the share of labels found.

B sequences of a batch, L length, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.epochs import InEpochs
from longshort.lab.data.labelled import LabelledSource, Numbers
from longshort.lab.data.shard import Shard
from longshort.lab.evaluate import Evaluator
from longshort.lab.evaluate.labels import Accuracy, Batch, scores_of
from longshort.lab.tasks.task import Split
from longshort.serial import registered


@registered("Classification")
@dataclass(frozen=True)
class Classification(InEpochs[Any]):
    """`sequences` a batch, each cut to its first `length` tokens and padded to the longest of the batch.

    multiple: lengths are rounded up to a multiple of this; with `length`, all batches are of that length. Compiled code
    and CUDA graphs are made anew for each length.
    order: seed of the order of examples. evaluation_batch: sequences at once in an evaluation, in the order of their
    lengths.
    pads_alike: pad there too as in training, for attentions to which the amount of padding matters.
    """

    source: LabelledSource[Any]
    length: int
    sequences: int = 32
    multiple: int = 1
    order: int = 0
    evaluation_batch: int = 256
    pads_alike: bool = False

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        for name in ("length", "sequences", "multiple", "evaluation_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def batch(self, step: int, part: int, parts: int) -> Batch:
        return self.read(self.splits.train, self.epochs.at(step, Shard(part, parts)), self.multiple)

    def read(self, items: Any, which: Numbers, multiple: int = 1) -> Batch:
        tokens = items.sequences.padded(which, self.length, multiple)
        return (torch.from_numpy(tokens),), torch.from_numpy(items.labels[which])

    def prepare(self, batch: Any) -> Any:
        return batch

    def size(self, batch: Batch) -> int:
        return sum(int(t.count_nonzero()) for t in batch[0])

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        inputs, labels = batch
        return F.cross_entropy(scores_of(model(*inputs)).float(), labels), None

    def evaluators(self, split: Split) -> Iterable[Evaluator]:
        """The split; of the test set also what a source turns it into, such as its longest tenth."""
        items = getattr(self.splits, split)
        yield self.accuracy(split, items)
        if split == "test":
            for name, change in self.splits.variants.items():
                yield self.accuracy(name, change(items))

    def accuracy(self, name: str, items: Any) -> Accuracy:
        multiple = self.multiple if self.pads_alike else 1
        lengths = items.lengths.clip(max=self.length)
        return Accuracy(name, lengths, partial(self.read, items, multiple=multiple), self.evaluation_batch)
