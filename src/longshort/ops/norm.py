"""LayerNorm of keys and values together, with one set of weights: what DualLN does, twice a layer.

N tokens of any shape, C width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.ops.fused import DTYPES, INSTALLED, normalise_both, takes_kernels
from longshort.ops.implementation import Implementation

WIDEST = 4096  # what a block of the kernel holds


def layer_norm_both(
    k: Tensor, v: Tensor, weight: Tensor, bias: Tensor, eps: float, impl: Implementation = "auto"
) -> tuple[Tensor, Tensor]:
    """LayerNorm over the last axis of k and v [..., C], with statistics in float32, in the dtype of k and v."""
    kernels = impl in ("auto", "triton") and takes_kernels(k) and INSTALLED and torch.version.hip is None
    kernels = kernels and k.dtype in DTYPES and k.shape == v.shape and weight.shape == k.shape[-1:]
    kernels = kernels and k.shape[-1] <= WIDEST
    if kernels and not torch.compiler.is_compiling():  # which makes one kernel of it by itself
        return normalise_both(k, v, weight, bias, eps)
    k, v = (F.layer_norm(t, weight.shape, weight, bias, eps).to(t.dtype) for t in (k, v))
    return k, v
