"""Forward and backward pass of a step as one CUDA graph: hundreds of launches become one.

A small model waits for the processor, which launches kernels more slowly than the GPU runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

Pass = Callable[[Any, Any], tuple[Tensor, Any]]  # batch, carry → loss, carry; adds to the gradients


class Graphed:
    """Does a pass as it is until its shapes stay the same, then captures and replays it.

    The optimizer works on the gradients that a replay leaves in the memory of the graph.
    """

    def __init__(self, step: Pass, model: nn.Module) -> None:
        self.step, self.parameters = step, [p for p in model.parameters() if p.requires_grad]
        self.stream = torch.cuda.Stream()  # captures happen on a stream of their own, and so does the warming up
        self.graph: torch.cuda.CUDAGraph | None = None
        self.seen: Any = None
        self.repeats = 0

    def __call__(self, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        shape = described((batch, carry))
        self.repeats = self.repeats + 1 if shape == self.seen else 0
        self.seen = shape
        if self.repeats < 2:  # the first of a kind may compile, the second may allocate
            self.graph = None
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                result = self.step(batch, carry)
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if self.graph is None:
            self.capture(batch, carry)
        return self.replay(batch, carry)

    def capture(self, batch: Any, carry: Any) -> None:
        leaves, self.tree = tree_flatten((batch, carry))
        self.inputs = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        for p in self.parameters:
            p.grad = None  # so that the capture makes gradients, and a replay writes them rather than adds to them
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            given = tree_unflatten(self.inputs, self.tree)
            self.loss, made = self.step(*given)
            copy(tree_flatten(made)[0], tree_flatten(given[1])[0])  # what one step carries on is the next one's
        self.gradients = [p.grad for p in self.parameters]

    def replay(self, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        assert self.graph is not None
        copy(tree_flatten((batch, carry))[0], self.inputs)
        self.graph.replay()
        for p, gradient in zip(self.parameters, self.gradients, strict=True):
            p.grad = gradient
        return self.loss, tree_unflatten(self.inputs, self.tree)[1]


def described(tree: Any) -> Any:
    """All that a graph depends on: shapes and dtypes of tensors, and everything else as it is."""
    leaves, structure = tree_flatten(tree)
    return structure, [(t.shape, t.dtype) if isinstance(t, Tensor) else t for t in leaves]


def copy(made: list[Any], kept: list[Any]) -> None:
    for new, old in zip(made, kept, strict=True):
        if isinstance(new, Tensor) and new is not old:
            old.copy_(new)
