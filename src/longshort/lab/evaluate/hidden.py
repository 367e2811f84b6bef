"""How well a model restores tokens that were hidden from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longshort.lab.data.labelled import Numbers
from longshort.lab.evaluate.evaluator import Advance, Share, Workers
from longshort.lab.evaluate.labels import in_order

Restored = tuple[Tensor, Tensor, Tensor]  # sum of losses, count of hidden tokens, how many of them the model finds


@dataclass(frozen=True, eq=False)
class HiddenTokens:
    """lengths: of all sequences, [I]; hide: a batch of some; restore: what a model makes of it."""

    name: str
    lengths: Numbers
    hide: Callable[[Numbers], tuple[Tensor, ...]]
    restore: Callable[[nn.Module, Any], Restored]
    batch: int

    @property
    def size(self) -> int:
        return len(self.lengths)

    @torch.no_grad()
    def run(self, model: nn.Module, processes: Workers, advance: Advance) -> dict[str, Share]:
        device = next(model.parameters()).device
        sums = torch.zeros(3, device=device, dtype=torch.float64)
        for items in in_order(self.lengths, self.batch, processes.index, processes.count):
            hidden = tuple(t.to(device) for t in self.hide(items))
            sums += torch.stack([t.double() for t in self.restore(model, hidden)])
            advance(len(items))
        loss, count, right = sums.tolist()
        return {"loss": Share(loss, count), "restored": Share(right, count)}
