"""What transformers have beside attention.

B batch, N tokens, C width, F inner width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Two linear layers with GELU between them, the same for every token."""

    def __init__(self, width: int, inner: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(F.gelu(self.inner(x))))  # [B, N, C] → [B, N, F] → [B, N, C]


class DropPath(nn.Module):
    """Stochastic depth: in training, what a layer adds is left out for a share `rate` of the samples, and the others
    get the more of it."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"drop_path must be at least 0 and below 1, got {rate}")
        # A tensor, so that layers that differ in their rate alone are compiled once.
        self.register_buffer("rate", torch.tensor(rate), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(len(x), *(1,) * (x.dim() - 1), device=x.device) >= self.rate
        return x * (kept / (1 - self.rate)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"rate={self.rate.item():.3g}"
