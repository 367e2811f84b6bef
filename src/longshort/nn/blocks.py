"""What transformers have beside attention.

B batch, N tokens, C width, F inner width.
"""

from __future__ import annotations

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
