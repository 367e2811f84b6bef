"""DualLN: one LayerNorm for local keys and values, one for the global rows, so that both start on one scale."""

from __future__ import annotations

from torch import Tensor, nn


class _LayerNorm(nn.LayerNorm):
    """Statistics in float32 under autocast, output in the dtype of the input, so that keys stay what queries are."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


class DualLN(nn.Module):
    """`local` is LN_L and `global_` is LN_G; each spans all heads and is shared by keys and values.

    With `enabled=False` both do nothing: the paper's ablation.
    """

    def __init__(self, width: int, *, enabled: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.local = _LayerNorm(width, eps=eps) if enabled else nn.Identity()
        self.global_ = _LayerNorm(width, eps=eps) if enabled else nn.Identity()
