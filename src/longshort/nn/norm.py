"""DualLN: one LayerNorm for local keys and values, one for the global rows, so that both start on one scale."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from longshort.ops import Implementation
from longshort.ops.norm import layer_norm_both


class _LayerNorm(nn.LayerNorm):
    """Of one tensor, or of keys and values together. Statistics in float32, output in the dtype of the input."""

    impl: Implementation = "auto"

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        if other is not None:
            return layer_norm_both(x, other, self.weight, self.bias, self.eps, self.impl)
        return super().forward(x).to(x.dtype)


class _Nothing(nn.Module):
    impl: Implementation = "auto"

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        return x if other is None else (x, other)


class DualLN(nn.Module):
    """`local` is LN_L and `global_` is LN_G; each spans all heads and is shared by keys and values.

    With `enabled=False` both do nothing: the paper's ablation.
    """

    def __init__(self, width: int, *, enabled: bool = True, eps: float = 1e-5, impl: Implementation = "auto") -> None:
        super().__init__()
        self.local = _LayerNorm(width, eps=eps) if enabled else _Nothing()
        self.global_ = _LayerNorm(width, eps=eps) if enabled else _Nothing()
        self.local.impl = self.global_.impl = impl
