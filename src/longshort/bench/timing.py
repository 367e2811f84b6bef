"""Timing side by side: what is compared runs in turns, so that a machine that slows down slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def milliseconds(*steps: Callable[[], object], repeats: int = 5) -> list[float]:
    """The median time of each step. Every step runs once to warm up, then all run in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:
                taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def forward_backward(layer: torch.nn.Module, *inputs: object) -> Callable[[], None]:
    """One training step of a layer, without an optimizer. Tensors get a gradient, as inside a network."""
    tensors = [x.detach().requires_grad_() if isinstance(x, torch.Tensor) else x for x in inputs]

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        for x in tensors:
            if isinstance(x, torch.Tensor):
                x.grad = None
        out = layer(*tensors)
        out = out[0] if isinstance(out, tuple) else out
        out.sum().backward()

    return step
