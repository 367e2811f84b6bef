"""Linformer (Wang et al. 2020): keys and values projected to `rank` rows by learned weights over positions.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import Adapter, imported
from longshort.serial import registered


@registered("Linformer")
@dataclass(frozen=True)
class Linformer:
    """By the package linformer (tried: 0.2.3). One projection for keys and one for values, shared by the heads.

    Padding: exact. The package takes no mask, but its keys and values have no bias, so tokens of zeros, which the
    adapter makes of padding, add nothing to any row. Dropout is on the attention weights.
    """

    rank: int = 256
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> LinformerAttention:
        return LinformerAttention(width, heads, max_length, rank=self.rank, dropout=dropout)


class LinformerAttention(Adapter):
    def __init__(self, width: int, heads: int, max_length: int, *, rank: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, max_length)
        package = imported("linformer")
        self.attention = package.LinformerSelfAttention(width, max_length, k=rank, heads=heads, dropout=dropout)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.attention(x)
