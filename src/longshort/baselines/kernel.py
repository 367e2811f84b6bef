"""Attention by features of queries and keys, φ(q) (φ(k)ᵀ v) / φ(q) Σ φ(k): no weights between tokens are ever formed.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn

from longshort.baselines.adapter import Adapter, imported


class KernelAttention(Adapter):
    """The linear layers around such an attention; features of padded keys are 0, so that no sum has them."""

    def __init__(self, width: int, heads: int, max_length: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, heads, max_length)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)  # on the output, for there are no attention weights
        self.weigh = imported("performer_pytorch.performer_pytorch").linear_attention

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q, k: [B, H, N, D] → [B, H, N, any]."""
        raise NotImplementedError

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        linear = (self.query, self.key, self.value)
        q, k, v = (rearrange(f(x), "b n (h d) -> b h n d", h=self.heads) for f in linear)
        if mask is None:
            y = self.weigh(*self.features(q, k), v)
        else:
            real = mask[:, None, :, None].to(v.dtype)  # [B, 1, N, 1]
            q, k = self.features(q, k * real)
            counts = real.where(mask.any(dim=1)[:, None, None, None], 1.0)  # where all is padding, a sum to divide by
            y = self.weigh(q, k * counts, v * real)
        return self.dropout(self.out(rearrange(y, "b h n d -> b n (h d)")))
