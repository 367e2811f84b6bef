"""The two sides of a comparison, as something to time: layers, and the operation alone (the core).

B batch, H heads, N tokens, D head width, R rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from longshort.geometry import Causal, Segments, Tiles
from longshort.lab.bench.flex import flexed
from longshort.lab.bench.full import FullAttention, FullCausalAttention
from longshort.lab.bench.settings import Setting
from longshort.lab.bench.timing import Work
from longshort.nn import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
from longshort.ops import RelativePositions, long_short_attention

DTYPE = torch.bfloat16


class Comparison(NamedTuple):
    what: str
    against: str
    ours: Callable[[], Work]  # made when first asked for: what does not fit into memory fails on its own side
    theirs: Callable[[], Work]


def comparisons(setting: Setting, device: torch.device, *, flex: bool) -> list[Comparison]:
    core = cache(lambda: core_of(setting, device))
    full = "SDPA, causal" if isinstance(setting.geometry, Causal) else "MultiheadAttention"
    found = [
        Comparison("layer", full, cache(lambda: layer_of(setting, device)), cache(lambda: full_layer(setting, device))),
        Comparison("core", "SDPA", core, cache(lambda: full_core(setting, device))),
    ]
    if flex:
        found.append(Comparison("core", "FlexAttention", core, cache(lambda: flex_core(setting, device))))
    return found


def layer_of(setting: Setting, device: torch.device) -> Work:
    geometry, sizes = setting.geometry, (setting.width, setting.heads)
    if isinstance(geometry, Segments):
        return layer_work(LongShortAttention(*sizes, window=geometry.window, rank=setting.rows), setting, device)
    if isinstance(geometry, Tiles):
        layer = GridLongShortAttention(*sizes, window=geometry.window, rank=setting.rows, relative_bias=True)
        return layer_work(layer, setting, device, (geometry.height, geometry.width))
    causal = CausalLongShortAttention(
        *sizes, window=geometry.window, segment=geometry.segment, rank=geometry.rank, kind=geometry.kind
    )
    return layer_work(causal, setting, device)


def full_layer(setting: Setting, device: torch.device) -> Work:
    kind = FullCausalAttention if isinstance(setting.geometry, Causal) else FullAttention
    return layer_work(kind(setting.width, setting.heads), setting, device)


def layer_work(layer: nn.Module, setting: Setting, device: torch.device, *more: object) -> Work:
    layer.to(device, DTYPE)
    x, upstream = (
        torch.randn(setting.batch, setting.tokens, setting.width, device=device, dtype=DTYPE) for _ in range(2)
    )
    x.requires_grad_()

    def call() -> Tensor:
        out = layer(x, *more)
        return out[0] if isinstance(out, tuple) else out

    return Work(call, (x, *layer.parameters()), upstream)


def core_of(setting: Setting, device: torch.device) -> Work:
    geometry, rows = setting.geometry, setting.rows
    q, k, v = (per_head(setting, setting.tokens, device) for _ in range(3))
    k_global, v_global = (per_head(setting, rows, device) for _ in range(2))
    positions = tables(setting, geometry, device) if isinstance(geometry, Causal) else None
    bias = offset_bias(setting, geometry, device) if isinstance(geometry, Tiles) else None

    def call() -> Tensor:
        return long_short_attention(q, k, v, k_global, v_global, geometry=geometry, positions=positions, bias=bias)

    leaves = (q, k, v, k_global, v_global, *(positions or ()), *(() if bias is None else (bias,)))
    return Work(call, leaves, per_head(setting, setting.tokens, device).detach())


def full_core(setting: Setting, device: torch.device) -> Work:
    q, k, v = (per_head(setting, setting.tokens, device) for _ in range(3))
    causal = isinstance(setting.geometry, Causal)

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Work(call, (q, k, v), per_head(setting, setting.tokens, device).detach())


def flex_core(setting: Setting, device: torch.device) -> Work:
    """Without positions or bias, which would need a [B, H, N, window] tensor; keys and rows come as one tensor."""
    q = per_head(setting, setting.tokens, device)
    k, v = (per_head(setting, setting.tokens + setting.rows, device) for _ in range(2))
    attend = flexed(setting.geometry, setting.tokens, setting.rows, device)
    return Work(lambda: attend(q, k, v), (q, k, v), per_head(setting, setting.tokens, device).detach())


def per_head(setting: Setting, tokens: int, device: torch.device) -> Tensor:
    """[B, H, tokens, D] as a projection leaves it in memory, [B, tokens, H·D]; a leaf that gets a gradient."""
    flat = torch.randn(setting.batch, tokens, setting.width, device=device, dtype=DTYPE)
    return flat.unflatten(2, (setting.heads, -1)).transpose(1, 2).requires_grad_()


def tables(setting: Setting, geometry: Causal, device: torch.device) -> RelativePositions:
    """As the layer makes them: [H, distances, D] from [distances, H·D]."""
    made = [torch.randn(n, setting.width, device=device, dtype=DTYPE) for n in (1, 1, geometry.span, setting.rows)]
    u, p, local, rows = (t.unflatten(1, (setting.heads, -1)).transpose(0, 1) for t in made)
    return RelativePositions(*(t.detach().requires_grad_() for t in (u[:, 0], p[:, 0], local, rows)))


def offset_bias(setting: Setting, geometry: Tiles, device: torch.device) -> Tensor:
    return torch.randn(
        setting.heads, geometry.offsets, geometry.offsets, device=device, dtype=DTYPE, requires_grad=True
    )
