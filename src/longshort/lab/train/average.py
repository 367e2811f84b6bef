"""A moving average of a model's weights, which is evaluated and saved in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Average:
    """After every step, `decay` of what it was and the rest of what the weights are; buffers too, such as BatchNorm's.

    At first it forgets faster: after `step` steps it keeps no more than (1 + step) / (10 + step).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.kept = [t.clone() for t in _tensors(model)]

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        keep = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.kept, _tensors(model), 1 - keep)

    @contextmanager
    def used(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self.swap(model)
        try:
            yield
        finally:
            self.swap(model)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        for kept, t in zip(self.kept, _tensors(model), strict=True):
            other = t.clone()
            t.copy_(kept)
            kept.copy_(other)

    @torch.no_grad()
    def take(self, model: nn.Module) -> None:
        """Begin anew from the model's weights."""
        for kept, t in zip(self.kept, _tensors(model), strict=True):
            kept.copy_(t)


def _tensors(model: nn.Module) -> list[Tensor]:
    """All that is averaged, without gradients; of weights that are divided over processes, this one's share."""
    all_ = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    return [t.to_local() if isinstance(t, DTensor) else t for t in all_]
