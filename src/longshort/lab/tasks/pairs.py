"""Classification of pairs of documents: the label of each pair. Both are read on their own, by the same model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from longshort.lab.data.labelled import Numbers
from longshort.lab.evaluate.labels import Batch
from longshort.lab.tasks.classify import Classification
from longshort.serial import registered


@registered("PairClassification")
@dataclass(frozen=True)
class PairClassification(Classification):
    """As `Classification`, of sources that give pairs; `sequences` pairs a batch."""

    def read(self, items: Any, which: Numbers, multiple: int = 1) -> Batch:
        sides = (items.documents.padded(items.pairs[which, i], self.length, multiple) for i in range(2))
        return tuple(torch.from_numpy(tokens) for tokens in sides), torch.from_numpy(items.labels[which])
