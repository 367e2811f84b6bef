"""The fused kernels, where they can run; Triton is imported when it is first needed, and not at all without it.

B batch, H heads, N queries, R rows, D head width.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDEST = 128  # features of a head
TILES = (32, 64)  # over which positions are rotated
INSTALLED = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # the kernels run on the CPU, slowly: for tests


def takes_kernels(t: Tensor) -> bool:
    """Whether "auto" takes kernels where they can run: on CUDA, but not for export, which is for any machine."""
    # not is_exporting(), which the compiler of PyTorch up to 2.11 answers with yes
    return t.is_cuda and not torch.compiler._is_exporting_flag


def why_not_here(t: Tensor) -> str | None:
    """What keeps kernels from running on tensors like t."""
    if not INSTALLED:
        return "Triton is not installed (pip install triton)"
    if torch.version.hip is not None:
        return "the kernels are for CUDA, not ROCm"
    if not t.is_cuda and not INTERPRETED:
        return f"the tensors are on {t.device}, and the kernels are for CUDA"
    if t.dtype not in DTYPES:
        return f"the kernels are for float32, float16 and bfloat16, not {t.dtype}"
    if t.shape[-1] > WIDEST:
        return f"heads are {t.shape[-1]} features wide, and the kernels take at most {WIDEST}"
    return None


def why_not(q: Tensor, geometry: Geometry, positions: bool, scale: float | None = None) -> str | None:
    """What keeps the attention kernels from queries like q."""
    if scale is not None and scale <= 0:  # the highest score is looked for before the scale
        return f"the kernels take a scale above 0, not {scale}"
    if positions and isinstance(geometry, Causal):
        for tile in TILES:  # no more rows than a tile is wide may lie between two queries of a tile
            if (tile - 2 + geometry.segment) // geometry.segment * geometry.rank >= tile:
                return f"with positions, rank {geometry.rank} is too high for segment {geometry.segment}"
    return why_not_here(q)


def fused(*args: Any, **keywords: Any) -> Tensor:
    """`long_short_attention` with the signature of `reference`."""
    from longshort.ops.triton import fused

    return fused(*args, **keywords)


def project(logits: Tensor, k: Tensor, v: Tensor, segment: int | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`dynamic_projection`."""
    from longshort.ops.triton.projection import project

    k_rows, v_rows = project(logits, k, v, segment, mask)
    return k_rows, v_rows


def normalise_both(k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`layer_norm_both`."""
    from longshort.ops.triton.norm import normalise_both

    k, v = normalise_both(k, v, weight, bias, eps)
    return k, v
