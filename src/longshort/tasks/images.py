"""Classification of pictures: the label of each, and the share of labels found.

B pictures of a batch, S side, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.data.epochs import Epochs
from longshort.data.images import Ahead, ImageFolder, Pictures, PictureSplits, judged_batch, training_batch
from longshort.data.labelled import Numbers
from longshort.data.shard import Shard
from longshort.tasks.accuracy import Counts
from longshort.tasks.augment import Augment, Draws, augmented, normalised

Batch = tuple[Tensor, Tensor, Draws]  # bytes [B, 3, S, S], labels [B], and what is to happen to them
USUAL = Augment()
AHEAD = 3  # batches that are read while one is learned from


@dataclass(frozen=True)
class ImageClassification:
    """`batch` pictures at a step, a part of each made `side` wide, augmented on the device.

    smoothing: of labels, the share that goes to all classes alike. order: seed of the order of pictures, of what is cut
    out and of what happens to it. judged: pictures at once in an evaluation, of each the middle, `crop` of its shorter
    side; one's own `judged_side` for pictures larger or smaller than in training.
    """

    source: ImageFolder
    side: int = 224
    images: int = 1024
    augment: Augment = USUAL
    smoothing: float = 0.1
    order: int = 0
    judged: int = 250
    crop: float = 0.875
    judged_side: int | None = None

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("side", "images", "judged"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.smoothing < 1 or not 0 < self.crop <= 1:
            raise ValueError(f"smoothing and crop are shares, got {self.smoothing} and {self.crop}")

    @cached_property
    def splits(self) -> PictureSplits:
        return self.source.splits()

    def fingerprint(self) -> str:
        return self.splits.fingerprint()

    @cached_property
    def epochs(self) -> Epochs:
        return Epochs(len(self.splits.train), self.images, self.order)

    @cached_property
    def _readers(self) -> dict[tuple[int, int], Ahead]:
        return {}

    def batch(self, step: int, part: int, parts: int) -> Batch:
        """A pure function of its arguments, which is called for the steps to come before it is asked for them."""
        ahead = self._readers.get((part, parts))
        if ahead is None:
            ahead = self._readers[part, parts] = Ahead(lambda n: self.read(n, part, parts), AHEAD)
        made: Batch = ahead(step)
        return made

    def read(self, step: int, part: int, parts: int) -> Batch:
        which = self.epochs.at(step, Shard(part, parts))
        others = self.epochs.at(step + 1, Shard(part, parts))  # in the place of broken ones
        seed = (self.order, step, part)
        images, labels = training_batch(self.splits.train, which, others, self.side, seed)
        draws = self.augment.draw(len(images), self.side, np.random.default_rng([*seed, 1 << 20]))
        return torch.from_numpy(images), torch.from_numpy(labels), draws

    def tokens(self, batch: Batch) -> int:
        return len(batch[0])  # of which the speed counts pictures

    def loss(self, model: nn.Module, batch: Batch, carry: Any) -> tuple[Tensor, Any]:
        images, labels, draws = batch
        with torch.autocast(images.device.type, enabled=False):
            seen = augmented(images, draws)
        scores = model(seen).float()
        own, other = (F.cross_entropy(scores, t, label_smoothing=self.smoothing) for t in (labels, labels.flip(0)))
        return draws.own * own + (1 - draws.own) * other, None

    def evaluate(self, model: nn.Module, part: int, parts: int) -> Counts:
        return self.judge(model, self.splits.dev, part, parts)

    def judge(
        self,
        model: nn.Module,
        pictures: Pictures,
        part: int = 0,
        parts: int = 1,
        tell: Callable[[int], Any] = lambda count: None,
    ) -> Counts:
        """Accuracy on any pictures; those that cannot be read do not count."""
        device = next(model.parameters()).device
        found, loss, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
        for scores, which in self.scores(model, pictures, part, parts, tell):
            labels = torch.from_numpy(pictures.labels[which]).to(device)
            found += (scores.argmax(1) == labels).sum()
            loss += F.cross_entropy(scores, labels, reduction="sum")
            count += len(which)
        return {"accuracy": (found.item(), count), "dev_loss": (loss.item(), count)}

    @torch.no_grad()
    def scores(
        self,
        model: nn.Module,
        pictures: Pictures,
        part: int = 0,
        parts: int = 1,
        tell: Callable[[int], Any] = lambda count: None,
    ) -> Any:
        """Batch by batch, scores [B, K] and which pictures they are of, [B]. Each of `parts` takes its share."""
        device = next(model.parameters()).device
        mine = np.arange(part, len(pictures), parts)
        side = self.judged_side or self.side

        def read(number: int) -> tuple[Any, Numbers]:
            return judged_batch(pictures, mine[number * self.judged : (number + 1) * self.judged], side, self.crop)

        ahead = Ahead(read, AHEAD)
        for number in range(-(-len(mine) // self.judged)):
            images, which = ahead(number)
            if len(which):
                x = normalised(torch.from_numpy(images).to(device).float() / 255)
                yield model(x).float(), which
            tell(min(self.judged, len(mine) - number * self.judged))
