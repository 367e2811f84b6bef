"""Performer (Choromanski et al. 2021): softmax attention estimated from random features of queries and keys.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import imported
from longshort.baselines.kernel import KernelAttention


@dataclass(frozen=True)
class Performer:
    """By FastAttention of the package performer-pytorch (tried: 1.1.4; its import warns that it uses distutils).

    The positive features are drawn when the layer is built, kept in a buffer and not drawn again. The package leaves
    the signs of its orthogonal matrices as QR gives them, so the directions are not spread evenly, and with ever more
    features the output comes near full attention but not to it.
    Padding: exact; see KernelAttention. The package itself masks the values alone, so that padded keys stay in the
    normaliser. Dropout is on the output.
    """

    features: int = 256
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> PerformerAttention:
        return PerformerAttention(width, heads, max_length, features=self.features, dropout=dropout)


class PerformerAttention(KernelAttention):
    def __init__(self, width: int, heads: int, max_length: int, *, features: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, max_length, dropout=dropout)
        self.attention = imported("performer_pytorch").FastAttention(width // heads, nb_features=features)

    def weigh(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v)
