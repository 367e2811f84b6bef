"""Optimizers of PyTorch from their specs: parameters are sorted into groups by what they are.

Each group keeps its peak rate under "peak"; `set_rate` moves them all along a schedule. Build once the model is on its
device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from longshort.lab.runs.optimizers import AdamW, Muon
from longshort.lab.train.muon import MuonAdamW


def build_optimizer(spec: AdamW | Muon, model: nn.Module) -> torch.optim.Optimizer:
    weights, others = _sort(model)
    if isinstance(spec, AdamW):
        groups = _not_empty(_groups(spec, weights, others))
        fused = all(p.is_cuda for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, fused=fused or None)
    outputs = {id(p) for name in spec.outputs for p in _layer(model, name).parameters()}
    hidden = [p for p in weights if p.dim() == 2 and id(p) not in outputs]
    rest = [p for p in weights if p.dim() != 2 or id(p) in outputs]
    own = dict(lr=spec.lr, momentum=spec.momentum, iterations=spec.iterations, scale=spec.scale)
    groups = [
        dict(params=hidden, muon=True, weight_decay=spec.weight_decay, **own),
        *(dict(group, muon=False) for group in _groups(spec.rest, rest, others)),
    ]
    return MuonAdamW(_not_empty(groups))


def _groups(spec: AdamW, weights: list[nn.Parameter], others: list[nn.Parameter]) -> list[dict[str, Any]]:
    own = dict(lr=spec.lr, peak=spec.lr, betas=spec.betas, eps=spec.eps)
    return [
        dict(params=weights, weight_decay=spec.weight_decay, **own),
        dict(params=others, weight_decay=0.0, **own),
    ]


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
    nonempty = [group for group in groups if group["params"]]
    if not nonempty:
        raise ValueError("the model has no parameter that wants a gradient")
    return nonempty
