"""Classification of pictures: the label of each, and the share of labels found.

B pictures of a batch, S side, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.epochs import Epochs
from longshort.lab.data.images import (
    Chunk,
    ImageFolder,
    Middle,
    Pictures,
    PictureSplits,
    Stream,
    View,
    training_chunk,
    workers_for,
)
from longshort.lab.data.shard import Shard
from longshort.lab.evaluate import Evaluator
from longshort.lab.evaluate.pictures import PictureLabels
from longshort.lab.tasks.augment import Augment, Draws, augmented
from longshort.lab.tasks.task import Split
from longshort.serial import registered

Batch = tuple[Tensor, Tensor, Draws]  # bytes [B, 3, S, S], labels [B], and what is to happen to them
Prepared = tuple[Tensor, Tensor, Tensor]  # what the model sees [B, 3, S, S], labels [B], share of a picture's own label
USUAL = Augment()
CHUNK = 128  # pictures that a process reads at a time


@registered("ImageClassification")
@dataclass(frozen=True)
class ImageClassification:
    """`batch` pictures at a step, a part of each made `side` wide, augmented on the device.

    smoothing: of labels, the share that goes to all classes alike. order: seed of the order of pictures, of what is cut
    out and of what happens to it. evaluation_batch: pictures at once in an evaluation, of each the middle, `crop` of
    its shorter side, made `evaluation_side` wide where it is given, and as in training where not. classes: how many
    there must be.
    """

    source: ImageFolder
    side: int = 224
    images: int = 1024
    augment: Augment = USUAL
    smoothing: float = 0.1
    order: int = 0
    evaluation_batch: int = 128
    crop: float = 0.875
    evaluation_side: int | None = None
    classes: int | None = None

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "pictures"

    def __post_init__(self) -> None:
        for name in ("side", "images", "evaluation_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.smoothing < 1 or not 0 < self.crop <= 1:
            raise ValueError(f"smoothing and crop are shares, got {self.smoothing} and {self.crop}")

    @cached_property
    def splits(self) -> PictureSplits:
        splits = self.source.splits()
        if self.classes not in (None, len(splits.classes)):
            raise ValueError(f"{self.source.path} has {len(splits.classes)} classes, and the model {self.classes}")
        return splits

    def fingerprint(self) -> str:
        return self.splits.fingerprint()

    @cached_property
    def epochs(self) -> Epochs:
        return Epochs(len(self.splits.train), self.images, self.order)

    @cached_property
    def _streams(self) -> dict[tuple[int, int], Stream]:
        return {}

    def batch(self, step: int, part: int, parts: int) -> Batch:
        """A pure function of its arguments; steps to come are read before they are asked for."""
        stream = self._streams.get((part, parts))
        if stream is None:
            # Not a method of this task: its stream must end with it, which a circle of the two would put off.
            make = partial(chunk_of, self.splits.train, self.epochs, Shard(part, parts), self.side)
            stream = self._streams[part, parts] = Stream(make, workers_for(parts))
        count = chunks_of(self.epochs, Shard(part, parts))
        chunks = [stream(step * count + i) for i in range(count)]
        pictures = self.splits.train
        pictures.note(broken for chunk in chunks for broken in chunk.broken)
        which = np.concatenate([chunk.which for chunk in chunks])
        draws = self.augment.draw(len(which), self.side, np.random.default_rng([self.order, step, part]))
        return torch.cat([chunk.images for chunk in chunks]), torch.from_numpy(pictures.labels[which]), draws

    def size(self, batch: Batch) -> int:
        return len(batch[0])

    def prepare(self, batch: Batch) -> Prepared:
        images, labels, draws = batch
        seen = augmented(images, draws)
        return seen, labels, torch.tensor(draws.own, device=seen.device)

    def loss(self, model: nn.Module, batch: Prepared, carry: Any) -> tuple[Tensor, Any]:
        """Mixed pictures have two labels, in the shares in which they are mixed."""
        seen, labels, share = batch
        scores = model(seen).float()
        own, other = (F.cross_entropy(scores, t, label_smoothing=self.smoothing) for t in (labels, labels.flip(0)))
        return torch.lerp(other, own, share), None

    def evaluators(self, split: Split) -> Iterable[Evaluator]:
        """There is a validation set alone."""
        if split == "dev":
            yield PictureLabels("validation", self.splits.dev, self.view, self.evaluation_batch)

    @property
    def view(self) -> View:
        return Middle(self.evaluation_side or self.side, self.crop)


def chunks_of(epochs: Epochs, shard: Shard) -> int:
    """How many chunks the part of a batch is made of."""
    return -(-epochs.batch // shard.count // CHUNK)


def chunk_of(pictures: Pictures, epochs: Epochs, shard: Shard, side: int, number: int) -> Chunk:
    """Pictures of a part of a batch: what one process reads at a time."""
    step, at = divmod(number, chunks_of(epochs, shard))
    which = epochs.at(step, shard)[at * CHUNK : (at + 1) * CHUNK]
    return training_chunk(pictures, which, side, (epochs.seed, step, shard.index, at))
