"""How many labels of pictures a vision model finds. Pictures that cannot be read do not count.

B pictures of a batch, I pictures of a set, S side, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.images import Chunk, Pictures, Stream, View, evaluation_chunk, normalised, workers_for
from longshort.lab.data.labelled import Numbers
from longshort.lab.evaluate.evaluator import Advance, Share, Workers
from longshort.lab.evaluate.measures import Measure, right


@dataclass(frozen=True, eq=False)
class PictureLabels:
    """view: what is cut out of a picture; batch: how many at once.

    measure: which scores count as right; labels: other than the pictures' own, one for each.
    """

    name: str
    pictures: Pictures
    view: View
    batch: int = 128
    measure: Measure = right
    labels: Any = None

    @property
    def size(self) -> int:
        return len(self.pictures)

    def run(self, model: nn.Module, processes: Workers, advance: Advance) -> dict[str, Share]:
        labels = self.pictures.labels if self.labels is None else self.labels
        right_count = loss = seen = counted = 0.0
        for scores, which in picture_scores(
            model, self.pictures, self.view, self.batch, processes.index, processes.count, advance
        ):
            good = self.measure(scores.cpu().numpy(), labels[which])
            right_count, counted = right_count + int(good.sum()), counted + len(good)
            if self.labels is None and self.measure is right:
                target = torch.from_numpy(labels[which]).to(scores.device)
                loss, seen = loss + F.cross_entropy(scores, target, reduction="sum").item(), seen + len(which)
        shares = {"accuracy": Share(right_count, counted)}
        return {**shares, "loss": Share(loss, seen)} if self.labels is None and self.measure is right else shares


@torch.no_grad()
def picture_scores(
    model: nn.Module,
    pictures: Pictures,
    view: View,
    at_once: int,
    part: int = 0,
    parts: int = 1,
    advance: Advance = lambda done: None,
) -> Iterator[tuple[Tensor, Numbers]]:
    """Batch by batch, scores [B, K] and which pictures they are of, [B]; not of those that cannot be read. Each of
    `parts` takes its share."""
    device = next(model.parameters()).device
    mine = np.arange(part, len(pictures), parts)
    count = -(-len(mine) // at_once)
    stream = Stream(partial(_chunk, pictures, mine, at_once, view), workers_for(parts), last=count)
    for number in range(count):
        chunk = stream(number)
        pictures.note(chunk.broken)
        if len(chunk.which):
            images = chunk.images.to(device)
            yield model(normalised(images.float() / 255)).float(), chunk.which
        advance(min(at_once, len(mine) - number * at_once))


def _chunk(pictures: Pictures, mine: Numbers, at_once: int, view: View, number: int) -> Chunk:
    return evaluation_chunk(pictures, mine[number * at_once : (number + 1) * at_once], view)
