"""Optimizers as frozen specs: `build(model)` sorts the parameters into groups by what they are.

Each group keeps its peak rate under "peak"; `set_rate` moves them all along a schedule. Build once the model is on its
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from longshort.lab.train.muon import MuonAdamW


def _check_at_least_zero(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"{name} must not be negative, got {number}")


def _check_below_one(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {number}")


@dataclass(frozen=True)
class AdamW:
    """Weights of two axes and more decay; biases, norms and embeddings do not."""

    lr: float = 2.5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_at_least_zero(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _check_below_one(**{"betas[0]": self.betas[0], "betas[1]": self.betas[1]})

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = _not_empty(self.groups(*_sort(model)))
        fused = all(p.is_cuda for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, fused=fused or None)

    def groups(self, weights: list[nn.Parameter], others: list[nn.Parameter]) -> list[dict[str, Any]]:
        own = dict(lr=self.lr, peak=self.lr, betas=self.betas, eps=self.eps)
        return [
            dict(params=weights, weight_decay=self.weight_decay, **own),
            dict(params=others, weight_decay=0.0, **own),
        ]


@dataclass(frozen=True)
class Muon:
    """Muon for hidden matrices; `rest` for embeddings, biases, norms, weights of three axes and more, and outputs.

    `outputs` names the layers, as `model.get_submodule` knows them, that turn features into scores. They learn better
    with AdamW, as embeddings do; one that is tied to an embedding needs no mention. `scale` is the root mean square of
    an update's entries at a rate of 1: with 0.2, rates that suit AdamW suit Muon.
    """

    lr: float = 2e-3
    momentum: float = 0.95
    weight_decay: float = 0.0
    iterations: int = 5
    scale: float = 0.2
    rest: AdamW = AdamW()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_at_least_zero(lr=self.lr, weight_decay=self.weight_decay, scale=self.scale)
        _check_below_one(momentum=self.momentum)
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if isinstance(self.outputs, str):
            raise ValueError(f"outputs must be a tuple of names, got the string {self.outputs!r}")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        weights, others = _sort(model)
        outputs = {id(p) for name in self.outputs for p in _layer(model, name).parameters()}
        hidden = [p for p in weights if p.dim() == 2 and id(p) not in outputs]
        kept = [p for p in weights if p.dim() != 2 or id(p) in outputs]
        own = dict(lr=self.lr, momentum=self.momentum, iterations=self.iterations, scale=self.scale)
        groups = [
            dict(params=hidden, muon=True, weight_decay=self.weight_decay, **own),
            *(dict(group, muon=False) for group in self.rest.groups(kept, others)),
        ]
        return MuonAdamW(_not_empty(groups))


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group `factor` of its own peak rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def _sort(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that want a gradient, each once: weights, and all others."""
    embeddings = {
        id(p)
        for layer in model.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        for p in layer.parameters(recurse=False)
    }
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        # A bias is known by its name too: those of the attention have an axis for the heads.
        weight = p.dim() >= 2 and id(p) not in embeddings and not name.endswith("bias")
        if p.requires_grad:
            (weights if weight else others).append(p)
    return weights, others


def _layer(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"outputs names the layer {name!r}, which {type(model).__name__} does not have") from None


def _not_empty(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checkpoints by name cannot tell groups without parameters apart, so there are none."""
    kept = [group for group in groups if group["params"]]
    if not kept:
        raise ValueError("the model has no parameter that wants a gradient")
    return kept
