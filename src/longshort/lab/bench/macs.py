"""Multiply-accumulates of one sample, as fvcore counts them (it calls them FLOPs): products of matrices one for each
multiplication, LayerNorm five for each feature, all else nothing.

Attentions that run as one operation are counted by who sees whom: two products of the head's width for each pair.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longshort import ops
from longshort.lab.bench.flops import FORWARD, visible_pairs


def count(model: nn.Module, *inputs: Tensor) -> int:
    """Of a pass over the inputs, divided by their number of samples; on the CPU."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), counting(model) as seen, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fvcore traces, which PyTorch wants no one to do
            analysis = fvcore().FlopCountAnalysis(model, inputs)
            analysis.set_op_handle("aten::scaled_dot_product_attention", of_full_attention)
            analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
            total = int(analysis.total()) + sum(seen)
    finally:
        model.train(training)
    return total // len(inputs[0])


def fvcore() -> Any:
    try:
        from fvcore import nn as package
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error.name} is not installed; pip install 'longshort[bench]'") from error
    return package


@contextmanager
def counting(model: nn.Module) -> Iterator[list[int]]:
    """Long-short attention, inside, computes nothing and notes how much it would."""
    seen: list[int] = []

    def note(q: Tensor, k: Tensor, v: Tensor, k_global: Tensor, v_global: Tensor, *, geometry: Any, **_: Any) -> Tensor:
        batch, heads, queries, width = (int(size) for size in q.shape)
        pairs = visible_pairs(geometry, queries, int(k_global.shape[2]))
        seen.append(FORWARD * batch * heads * width * pairs)
        return q + sum(t.sum() for t in (k, v, k_global, v_global))  # what nothing comes of would not be counted

    known = dict(ops.IMPLEMENTATIONS)
    layers: dict[Any, Any] = {layer: layer.impl for layer in model.modules() if hasattr(layer, "impl")}
    ops.IMPLEMENTATIONS.update(dict.fromkeys(known, note))
    for layer in layers:
        layer.impl = "reference"  # choosing one looks at lengths, which are no numbers while fvcore traces
    try:
        yield seen
    finally:
        ops.IMPLEMENTATIONS.update(known)
        for layer, impl in layers.items():
            layer.impl = impl


def of_full_attention(inputs: list[Any], outputs: list[Any]) -> int:
    """Of PyTorch's one operation, which fvcore does not know."""
    (batch, heads, queries, width), keys = inputs[0].type().sizes(), inputs[1].type().sizes()[2]
    return FORWARD * batch * heads * queries * keys * width
