"""Functions on a GPU as CUDA graphs: what takes hundreds of launches then takes one.

A small model waits for the processor, which launches kernels more slowly than the GPU runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Step = Callable[[Any, Any], tuple[Any, Any]]  # given, carry → result, carry
PLAIN = 2  # calls of a kind before it is captured: the first may compile, the second may allocate
MOST = 64  # kinds that are kept


class Replay:
    """Calls a step as it is until its shapes come again, then captures and replays it, one graph for each kind of call.

    given, carry, result: trees of tensors, always of one structure. What a call returns is overwritten by a later one:
    use it or copy it.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()  # captures happen on a stream of their own, and so does the warming up
        self.pool = torch.cuda.graph_pool_handle()  # one for all, since one at a time is of use
        self.calls: dict[Any, int] = {}
        self.graphs: dict[Any, Graph] = {}

    def __call__(self, given: Any, carry: Any) -> tuple[Any, Any]:
        leaves, tree = tree_flatten((given, carry))
        kind = tuple((t.shape, t.dtype) if isinstance(t, Tensor) else t for t in leaves)
        graph = self.graphs.get(kind)
        if graph is not None:
            return self.run(graph, leaves)
        self.calls[kind] = self.calls.get(kind, 0) + 1
        if self.calls[kind] <= PLAIN:
            if len(self.calls) > MOST:  # shapes that grow, and so never come again
                self.calls = {kind: self.calls[kind]}
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                result = self.step(given, carry)
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if len(self.graphs) >= MOST:
            self.graphs.clear()
        self.graphs[kind] = self.capture(leaves, tree)
        return self.run(self.graphs[kind], leaves)

    def run(self, graph: Graph, leaves: list[Any]) -> tuple[Any, Any]:
        return graph.replay(leaves)

    def capture(self, leaves: list[Any], tree: TreeSpec) -> Graph:
        return Graph(self.step, leaves, tree, self.stream, self.pool)


class Graph:
    """A step on tensors that stay where they are."""

    gradients: list[Tensor | None]  # of a training step, in the memory of the graph

    def __init__(self, step: Step, leaves: list[Any], tree: TreeSpec, stream: torch.cuda.Stream, pool: Any) -> None:
        inputs = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        self.by_dtype: dict[torch.dtype, list[tuple[int, Tensor]]] = {}  # so that copies need few launches
        for i, t in enumerate(inputs):
            if isinstance(t, Tensor):
                self.by_dtype.setdefault(t.dtype, []).append((i, t))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream, pool=pool):
            self.result = step(*tree_unflatten(inputs, tree))

    def replay(self, leaves: list[Any]) -> tuple[Any, Any]:
        for inputs in self.by_dtype.values():
            torch._foreach_copy_([t for _, t in inputs], [leaves[i] for i, _ in inputs])
        self.graph.replay()
        return self.result
