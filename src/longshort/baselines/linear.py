"""Linear Transformer (Katharopoulos et al. 2020): attention by the features elu(x) + 1.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from longshort.baselines.adapter import imported
from longshort.baselines.kernel import KernelAttention
from longshort.serial import registered


@registered("LinearTransformer")
@dataclass(frozen=True)
class LinearTransformer:
    """By generalized_kernel and linear_attention of the package performer-pytorch (tried: 1.1.4).

    The package linear-attention-transformer is of another method, Efficient Attention (Shen et al. 2018), with softmax
    for features. Padding: exact; see KernelAttention. Dropout is on the output.
    """

    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> LinearTransformerAttention:
        return LinearTransformerAttention(width, heads, max_length, dropout=dropout)


def elu_plus_one(x: Tensor) -> Tensor:
    return F.elu(x) + 1


class LinearTransformerAttention(KernelAttention):
    def __init__(self, width: int, heads: int, max_length: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, heads, max_length, dropout=dropout)
        self.kernel = imported("performer_pytorch.performer_pytorch").generalized_kernel

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        plain = dict(projection_matrix=None, kernel_fn=elu_plus_one, kernel_epsilon=0.0, normalize_data=False)
        return self.kernel(q, **plain), self.kernel(k, **plain)
