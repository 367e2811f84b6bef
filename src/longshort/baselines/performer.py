"""Performer (Choromanski et al. 2021): softmax attention estimated from random features of queries and keys.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import imported
from longshort.baselines.kernel import KernelAttention
from longshort.serial import registered


@registered("Performer")
@dataclass(frozen=True)
class Performer:
    """By the package performer-pytorch (tried: 1.1.4; its import warns that it uses distutils).

    The positive features are drawn when the layer is built, kept in a buffer and not drawn again. The package leaves
    the signs of its orthogonal matrices as QR gives them, so the directions are not spread evenly, and with ever more
    features the output comes near full attention but not to it.
    Padding: exact; see KernelAttention. The package's own module masks the values alone, so that padded keys would stay
    in the normaliser. Dropout is on the output.
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
        package = imported("performer_pytorch.performer_pytorch")
        self.random, self.kernel = package.FastAttention(width // heads, nb_features=features), package.softmax_kernel

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self.random.projection_matrix
        return self.kernel(q, projection_matrix=matrix, is_query=True), self.kernel(
            k, projection_matrix=matrix, is_query=False
        )
