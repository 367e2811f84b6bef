"""Sinkhorn Transformer (Tay et al. 2020): a token sees its own bucket and one that a learned sorting puts beside it.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import Adapter, imported
from longshort.serial import registered


@registered("Sinkhorn")
@dataclass(frozen=True)
class Sinkhorn:
    """By the package sinkhorn-transformer (tried: 0.11.4). `iterations` of row and column normalisation.

    Two things the package does otherwise than the paper says: in the sorted bucket it takes the keys for values as
    well, and it adds Gumbel noise to the sorting in evaluation too. Padding: what stands in it reaches no one, but its
    amount counts: buckets are sorted by their means over padding, too. Dropout is on the attention weights.
    """

    bucket: int = 64
    iterations: int = 5
    temperature: float = 0.75
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> SinkhornAttention:
        return SinkhornAttention(
            width,
            heads,
            max_length,
            bucket=self.bucket,
            iterations=self.iterations,
            temperature=self.temperature,
            dropout=dropout,
        )


class SinkhornAttention(Adapter):
    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        bucket: int,
        iterations: int = 5,
        temperature: float = 0.75,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, heads, max_length, multiple=bucket)
        self.attention = imported("sinkhorn_transformer.sinkhorn_transformer").SinkhornSelfAttention(
            width,
            bucket,
            self.padded(max_length),
            heads=heads,
            non_permutative=False,
            sinkhorn_iter=iterations,
            temperature=temperature,
            attn_dropout=dropout,
        )

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.attention(x, input_mask=mask)
