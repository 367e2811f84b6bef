"""Forward and backward pass of a training step as one CUDA graph."""

from __future__ import annotations

from typing import Any

from torch import nn

from longshort.graphs import Graph, Replay, Step


class Gradients(Replay):
    """A step that leaves gradients. The optimizer works on those that a replay leaves in the memory of its graph."""

    def __init__(self, step: Step, model: nn.Module) -> None:
        super().__init__(step)
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def capture(self, leaves: list[Any], tree: Any) -> Graph:
        for p in self.parameters:
            p.grad = None  # so that the capture makes gradients, and a replay writes them rather than adds to them
        graph = super().capture(leaves, tree)
        graph.gradients = [p.grad for p in self.parameters]
        return graph

    def run(self, graph: Graph, leaves: list[Any]) -> tuple[Any, Any]:
        result = super().run(graph, leaves)
        for p, gradient in zip(self.parameters, graph.gradients, strict=True):
            p.grad = gradient
        return result
