"""The layers we are compared with: full attention, as fast as PyTorch has it."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


class FullAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention on one sequence, without the attention weights, which would keep it from its fast path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


class FullCausalAttention(nn.Module):
    """Causal scaled_dot_product_attention between the usual projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (rearrange(p(x), "b n (h d) -> b h n d", h=self.heads) for p in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(rearrange(y, "b h n d -> b n (h d)"))
