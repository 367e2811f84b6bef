"""How many labels a model finds: sequences in the order of their length, so that little is padded.

B sequences of a batch, L length, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.labelled import Numbers

Batch = tuple[tuple[Tensor, ...], Tensor]  # what the model is given, each [B, L], and labels [B]
Counts = dict[str, tuple[float, float]]


def scores_of(output: Any) -> Tensor:
    """What a model of ours gives; of transformers', the logits among what it gives."""
    scores: Tensor = output if isinstance(output, Tensor) else output.logits
    return scores


@torch.no_grad()
def accuracy(
    model: nn.Module,
    lengths: Numbers,
    read: Callable[[Numbers], Batch],
    part: int = 0,
    parts: int = 1,
    *,
    at_once: int,
    tell: Callable[[int], Any] = lambda count: None,
) -> Counts:
    """Of the items with these lengths: labels found, and losses; sums and counts. Each of `parts` takes its share."""
    device = next(model.parameters()).device
    found, loss, count = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for items in in_order(lengths, at_once, part, parts):
        given, labels = read(items)
        labels = labels.to(device)
        scores = scores_of(model(*(t.to(device) for t in given))).float()  # [B, K]
        found += (scores.argmax(1) == labels).sum()
        loss += F.cross_entropy(scores, labels, reduction="sum")
        count += len(items)
        tell(len(items))
    return {"accuracy": (found.item(), count), "dev_loss": (loss.item(), count)}


def in_order(lengths: Numbers, at_once: int, part: int, parts: int) -> Iterator[Numbers]:
    """Batches of similar lengths, those of one part."""
    order = np.argsort(lengths, kind="stable")
    for at in range(part * at_once, len(order), parts * at_once):
        yield order[at : at + at_once]
