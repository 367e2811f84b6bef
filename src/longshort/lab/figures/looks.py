"""Where one token looks, layer by layer: at which tokens through its window, and at which through the rows.

A row is an average of tokens; a token that gives a row some attention gives each token of that row its share of it.

B batch, H heads, N tokens, M keys, R rows, G global tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longshort import ops
from longshort.geometry import Causal
from longshort.nn import CausalLongShortAttention, GridLongShortAttention
from longshort.nn.grid import GridFullAttention
from longshort.ops.reference import weights_of

LONG_SHORT = (GridLongShortAttention, CausalLongShortAttention)


@dataclass(frozen=True)
class Look:
    """Means over heads. window, rows: shares of all attention that each token gets, [N]; others: what global tokens
    get. Full attention is all window."""

    name: str
    window: Tensor
    rows: Tensor
    others: float = 0.0


@contextmanager
def watching(model: nn.Module) -> Iterator[dict[nn.Module, dict[str, Any]]]:
    """What each attention of a model is given: of long-short attention, its operation and logits of rows."""
    seen: dict[nn.Module, dict[str, Any]] = {}
    layers = [m for m in model.modules() if isinstance(m, (*LONG_SHORT, GridFullAttention))]
    now: list[nn.Module] = []
    known = dict(ops.IMPLEMENTATIONS)

    def watched(implementation: Any) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, k_global: Tensor, v_global: Tensor, **keywords: Any) -> Tensor:
            given = {name: value for name, value in keywords.items() if name != "dropout"}
            seen[now[-1]].setdefault("operation", dict(q=q, k=k, k_global=k_global, **given))  # not global tokens' own
            return implementation(q, k, v, k_global, v_global, **keywords)

        return call

    def enter(layer: nn.Module, given: Any) -> None:
        now.append(layer)
        seen[layer] = {}

    def note(layer: nn.Module, name: str) -> Any:
        return lambda module, given, out: seen[layer].update({name: out})

    handles = [layer.register_forward_pre_hook(enter) for layer in layers]
    for layer in layers:
        parts = ("rows",) if isinstance(layer, LONG_SHORT) else ("query", "key")
        handles += [getattr(layer, part).register_forward_hook(note(layer, part)) for part in parts]
    ops.IMPLEMENTATIONS.update({name: watched(implementation) for name, implementation in known.items()})
    try:
        yield seen
    finally:
        ops.IMPLEMENTATIONS.update(known)
        for handle in handles:
            handle.remove()


@torch.no_grad()
def look_of(layer: nn.Module, seen: dict[str, Any], token: int, name: str, size: tuple[int, int] | None = None) -> Look:
    """Of token number `token`, global ones not counted, of the first of the batch. size: of the grid, for full
    attention."""
    if isinstance(layer, GridFullAttention):
        assert size is not None
        g = layer.global_tokens
        q, k = (seen[part][0].float().unflatten(1, (layer.heads, -1)).transpose(0, 1) for part in ("query", "key"))
        scores = torch.einsum("hd,hnd->hn", q[:, g + token], k) / q.shape[2] ** 0.5
        bias = layer.bias(size)
        weights = (scores if bias is None else scores + bias[:, g + token]).softmax(1).mean(0)
        return Look(name, weights[g:], torch.zeros_like(weights[g:]), weights[:g].sum().item())
    given = dict(seen["operation"])
    assert isinstance(layer, LONG_SHORT)
    keys = given["k"].shape[2]
    weights = weights_of(**given)[0, :, token]  # [H, M + R]
    window, rest = weights[:, :keys], weights[:, keys:]
    others = rest.shape[1] - rows_in(layer, keys)
    first, rows = rest[:, :others], rest[:, others:]
    through = torch.einsum("hr,hrn->hn", rows, projection(layer, seen["rows"][0], keys))
    return Look(name, window.mean(0), through.mean(0), first.sum(1).mean().item())


def rows_in(layer: Any, keys: int) -> int:
    """Of what is distilled from so many tokens."""
    rows: int = layer.geometry.rows_before(keys) if isinstance(layer, CausalLongShortAttention) else layer.rank
    return rows


def projection(layer: Any, logits: Tensor, keys: int) -> Tensor:
    """What each token is to each row, [H, rows, N], from logits [N, H·R]."""
    weights = logits.float().unflatten(1, (layer.heads, -1)).permute(1, 2, 0)  # [H, R, N]
    if not isinstance(layer, CausalLongShortAttention):
        return weights.softmax(2)
    geometry: Causal = layer.geometry
    length, segments = geometry.segment, keys // geometry.segment
    made = weights.new_zeros(layer.heads, segments, geometry.rank, keys)
    for s in range(segments):
        inside = slice(s * length, (s + 1) * length)
        made[:, s, :, inside] = weights[:, :, inside].softmax(2)
    return made.flatten(1, 2)
