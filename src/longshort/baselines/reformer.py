"""Reformer (Kitaev et al. 2020): tokens are sorted by hashes of their keys, and see their bucket and the one before.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import Adapter, imported


@dataclass(frozen=True)
class Reformer:
    """By LSHSelfAttention of the package reformer-pytorch (tried: 1.4.4). Queries and keys are one projection.

    The hashes are drawn anew at every call, in evaluation too. Padding: what stands in it reaches no one, but its
    amount counts: padded tokens take up places in the buckets. Dropout is on the attention weights.
    """

    hashes: int = 2
    bucket: int = 64
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> ReformerAttention:
        return ReformerAttention(width, heads, max_length, hashes=self.hashes, bucket=self.bucket, dropout=dropout)


class ReformerAttention(Adapter):
    def __init__(
        self, width: int, heads: int, max_length: int, *, hashes: int, bucket: int, dropout: float = 0.0
    ) -> None:
        super().__init__(width, heads, max_length, multiple=2 * bucket)
        self.attention = imported("reformer_pytorch").LSHSelfAttention(
            width, heads=heads, bucket_size=bucket, n_hashes=hashes, dropout=dropout
        )

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.attention(x, input_mask=mask)
