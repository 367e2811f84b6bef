"""Attention by features of queries and keys, φ(q) (φ(k)ᵀ v) / φ(q) Σ φ(k): no weights between tokens are ever formed.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from longshort.baselines.adapter import Adapter


class KernelAttention(Adapter):
    """The linear layers around such an attention, and a mask for one that knows none."""

    def __init__(self, width: int, heads: int, max_length: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, heads, max_length)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)  # on the output, for there are no attention weights

    def weigh(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k: [B, H, N, D]. v: [B, H, N, any]."""
        raise NotImplementedError

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        linear = (self.query, self.key, self.value)
        q, k, v = (rearrange(f(x), "b n (h d) -> b h n d", h=self.heads) for f in linear)
        y = self.weigh(q, k, v) if mask is None else self.weigh_real(q, k, v, mask)
        return self.dropout(self.out(rearrange(y, "b h n d -> b n (h d)")))

    def weigh_real(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Padded keys stay in the normaliser, but a further value, 1 on real tokens, tells the real share of it."""
        real = mask[:, None, :, None].to(v.dtype).expand(-1, self.heads, -1, -1)  # [B, H, N, 1]
        y = self.weigh(q, k * real, torch.cat([v * real, real], dim=3))
        y, share = y[..., :-1], y[..., -1:]
        return y / share.clamp_min(torch.finfo(share.dtype).tiny)  # 0 where all is padding
