"""Timing side by side: what is compared runs in turns, so that a machine that slows down slows both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Step = Callable[[], object]

# On a GPU steps are timed in bursts of about this length: the wait for a first launch is not the step's.
BURST_MS = 50.0
MOST = 20  # steps of a burst


@dataclass(frozen=True)
class Work:
    """Something to time: a function, the tensors that get a gradient, and the gradient that arrives at its output."""

    call: Callable[[], Tensor]
    leaves: tuple[Tensor, ...]
    upstream: Tensor

    def clear(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    def forward(self) -> None:
        with torch.no_grad():
            self.call()

    def forward_backward(self) -> None:
        self.clear()
        self.call().backward(self.upstream)


def milliseconds(*steps: Step, repeats: int = 5, device: torch.device | str = "cpu") -> list[float]:
    """The median time of each step. All run in turns; the first turn warms up and does not count."""
    gpu = torch.device(device).type == "cuda"
    clock = by_events if gpu else by_clock
    counts = [burst(step) if gpu else 1 for step in steps]
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, count, taken in zip(steps, counts, times, strict=True):
            ms = clock(step, count)
            if turn:
                taken.append(ms)
    return [statistics.median(taken) for taken in times]


def by_clock(step: Step, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return 1e3 * (time.perf_counter() - start) / count


def by_events(step: Step, count: int) -> float:
    """The time a GPU took, from an idle start; where launching takes longer than computing, it is the launching's."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def burst(step: Step) -> int:
    """How many steps to time at once on a GPU."""
    by_events(step, 1)  # the first may compile and tune
    return min(max(math.ceil(BURST_MS / by_events(step, 1)), 1), MOST)


def peak_mib(step: Step, device: torch.device | str) -> float | None:
    """Memory a step takes at its peak, its gradients included, above what was there before; None on a CPU."""
    if torch.device(device).type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def graphed(work: Work) -> Step:
    """Forward + backward as one CUDA graph, with gradients at fixed addresses: a step without its launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, tunes and fills caches, which a capture cannot
        for _ in range(3):
            work.forward_backward()
    torch.cuda.current_stream().wait_stream(side)
    work.clear()  # so that the capture makes the gradients, and a replay writes them rather than adds to them
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.call().backward(work.upstream)
    return graph.replay


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
