"""Nyströmformer (Xiong et al. 2021): attention through `landmarks`, averages of neighbouring queries and keys.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from longshort.baselines.adapter import Adapter, imported
from longshort.serial import registered


@registered("Nystromformer")
@dataclass(frozen=True)
class Nystromformer:
    """By the package nystrom-attention (tried: 0.0.14).

    `iterations` are those of the pseudo-inverse; `convolution` is the length of the depth-wise convolution over the
    values that is added to the output, an odd number, or 0 for none.
    Padding: what stands in it reaches no one, but its amount counts: the landmarks are spread over the padded length.
    The package scales its pseudo-inverse by the largest sum in the whole batch, so a sequence's output also depends,
    a little, on those beside it. Dropout is on the output. Takes autocast, but no module converted to bfloat16.
    """

    landmarks: int = 128
    iterations: int = 6
    convolution: int = 33
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> NystromformerAttention:
        return NystromformerAttention(
            width,
            heads,
            max_length,
            landmarks=self.landmarks,
            iterations=self.iterations,
            convolution=self.convolution,
            dropout=dropout,
        )


class NystromformerAttention(Adapter):
    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        landmarks: int,
        iterations: int = 6,
        convolution: int = 33,
        dropout: float = 0.0,
    ) -> None:
        # the package would pad by itself, but without a mask its padding is seen
        super().__init__(width, heads, max_length, multiple=landmarks)
        if convolution and convolution % 2 == 0:
            raise ValueError(f"convolution must be odd, or 0 for none, got {convolution}")
        self.attention = imported("nystrom_attention").NystromAttention(
            width,
            dim_head=width // heads,
            heads=heads,
            num_landmarks=landmarks,
            pinv_iterations=iterations,
            residual=convolution > 0,
            residual_conv_kernel=convolution,
            dropout=dropout,
        )

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.attention(x, mask=mask)
