"""Linformer's projection in the place of the dynamic one: window and rows in one softmax, as in long-short attention.

B batch, N tokens, C width, H heads, D head width, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from longshort.nn.attention import LongShortAttention
from longshort.serial import registered


@registered("LinformerWindow")
@dataclass(frozen=True)
class LinformerWindow:
    """LongShort with rows that are fixed, learned sums over positions (Wang et al. 2020). No package: all is ours.

    One projection for keys and one for values, shared by the heads. DualLN, window and global tokens are those of
    LongShortAttention, so the two differ in the projection alone. Padding: exact; it adds nothing to any row.
    """

    window: int
    rank: int
    dual_norm: bool = True
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> LinformerWindowAttention:
        return LinformerWindowAttention(
            width,
            heads,
            max_length,
            window=self.window,
            rank=self.rank,
            dual_norm=self.dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
        )


class OverPositions(nn.Linear):
    """E and F [R, N], one below the other. A type of its own, so that no kernel takes it for W_P."""

    def __init__(self, positions: int, rank: int) -> None:
        super().__init__(positions, 2 * rank, bias=False)


class LinformerWindowAttention(LongShortAttention):
    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        window: int,
        rank: int,
        dual_norm: bool = True,
        dropout: float = 0.0,
        global_tokens: int = 0,
    ) -> None:
        super().__init__(
            width,
            heads,
            window=window,
            rank=rank,
            dual_norm=dual_norm,
            dropout=dropout,
            global_tokens=global_tokens,
        )
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}; the window alone is LongShort(window, rank=0)")
        if max_length <= global_tokens:
            raise ValueError(f"max_length {max_length} leaves no token beside {global_tokens} global ones")
        self.rows = OverPositions(max_length - global_tokens, rank)

    def distil(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if k.shape[2] > self.rows.in_features:
            raise ValueError(
                f"x has {k.shape[2]} tokens beside global ones, but at most {self.rows.in_features} can be"
            )
        if mask is not None:
            k, v = (t.masked_fill(~mask[:, None, :, None], 0.0) for t in (k, v))
        of_keys, of_values = self.rows.weight[:, : k.shape[2]].chunk(2)  # [R, N]
        k_rows, v_rows = (torch.einsum("rn,bhnd->bhrd", p, t) for p, t in ((of_keys, k), (of_values, v)))
        return k_rows, v_rows
