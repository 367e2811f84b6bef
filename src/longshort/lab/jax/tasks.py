"""What a run in JAX learns, and which runs JAX can train. Registers the model configs of longshort.jax.

B sequences of a batch, L length, I items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from longshort.jax.sequence import SequenceConfig
from longshort.jax.specs import Full, Linformer, Local, LongShort, Performer
from longshort.lab.data.epochs import InEpochs
from longshort.lab.data.labelled import Labelled, LabelledSource
from longshort.lab.runs.optimizers import AdamW
from longshort.lab.runs.run import Run
from longshort.serial import registered

Batch = tuple[NDArray[Any], NDArray[Any]]  # tokens [B, L], labels [B]
NO_LABEL = -1  # of a row that only fills up a batch
ONLY_DEFAULT = ("clip", "average", "accumulate", "precision", "compile", "graph", "starts_from")

for cls in (SequenceConfig, LongShort, Full, Local, Linformer, Performer):
    registered(f"jax.{cls.__name__}")(cls)  # PyTorch's classes have the plain names


@registered("jax.Labels")
@dataclass(frozen=True)
class Labels(InEpochs[Labelled]):
    """Classification of sequences. `sequences` a batch, each cut to its first `length` tokens.

    Training batches are padded to `length`, because a step is compiled for one shape.
    order: seed of the order of examples. evaluation_batch: sequences at once in an evaluation, in the order of their
    lengths.
    """

    source: LabelledSource[Labelled]
    length: int
    sequences: int = 32
    order: int = 0
    evaluation_batch: int = 250

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        for name in ("length", "sequences", "evaluation_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def batch(self, step: int) -> Batch:
        """The batch of update number `step`, from 0."""
        items, which = self.splits.train, self.epochs.at(step)
        return items.sequences.padded(which, self.length, self.length), items.labels[which]

    def evaluation_batches(self, items: Labelled) -> Iterator[Batch]:
        """All items, in batches of one size and of at most four lengths, because each shape is compiled for. The last
        batch is filled up with empty sequences labelled NO_LABEL."""
        order = np.argsort(items.lengths, kind="stable")
        size, quarter = min(self.evaluation_batch, len(order)), -(-self.length // 4)
        for start in range(0, len(order), size):
            which = order[start : start + size]
            missing = size - len(which)
            tokens = np.pad(items.sequences.padded(which, self.length, quarter), ((0, missing), (0, 0)))
            yield tokens, np.pad(items.labels[which], (0, missing), constant_values=NO_LABEL)


def check_run(run: Run) -> None:
    """Refuses a run with settings that mean nothing in JAX."""
    for name, expected in dict(model=SequenceConfig, task=Labels, optimizer=AdamW).items():
        value = getattr(run, name)
        if not isinstance(value, expected):
            raise ValueError(f"{name} must be {expected.__module__}.{expected.__name__} in JAX, got {value}")
    defaults = {field.name: field.default for field in fields(Run)}
    for name in ONLY_DEFAULT:
        value = getattr(run, name)
        if value != defaults[name]:
            value = value.name if isinstance(value, Run) else value
            raise ValueError(f"{name} must be {defaults[name]} in JAX, got {value}")
