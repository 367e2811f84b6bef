"""Longformer (Beltagy et al. 2020): a token sees `window` tokens around it and the global tokens, which see all.

B batch, N tokens, C width, G global tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from longshort.baselines.adapter import Adapter, imported
from longshort.serial import registered


@registered("Longformer")
@dataclass(frozen=True)
class Longformer:
    """By LongformerSelfAttention of transformers (tried: 5.22.2), with an output layer of ours.

    The first `global_tokens` are Longformer's own, with projections of their own; where there are none, those are
    frozen. Padding: exact, but in float64, where the package casts its lowest score to float32's -inf, gradients are
    NaN with it. Dropout is on the attention weights.
    """

    window: int = 512
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = False

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> LongformerAttention:
        return LongformerAttention(
            width, heads, max_length, window=self.window, dropout=dropout, global_tokens=global_tokens
        )


class LongformerAttention(Adapter):
    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        window: int,
        dropout: float = 0.0,
        global_tokens: int = 0,
    ) -> None:
        super().__init__(width, heads, max_length, multiple=window)
        if window % 2:
            raise ValueError(f"window must be even, got {window}")
        config = imported("transformers").LongformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            num_hidden_layers=1,
            attention_window=[window],
            attention_probs_dropout_prob=dropout,
        )
        package = imported("transformers.models.longformer.modeling_longformer")
        self.attention = package.LongformerSelfAttention(config, layer_id=0)
        self.out = nn.Linear(width, width)
        self.global_tokens = global_tokens
        if global_tokens == 0:
            for linear in (self.attention.query_global, self.attention.key_global, self.attention.value_global):
                linear.requires_grad_(False)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        first = mask & (torch.arange(x.shape[1], device=x.device) < self.global_tokens)
        # the package's signs: 0 sees its window, below 0 is not seen, above 0 sees and is seen by all
        sign = torch.zeros(mask.shape, device=x.device).masked_fill(~mask, -1.0).masked_fill(first, 1.0)
        (y,) = self.attention(
            x,
            attention_mask=sign,
            is_index_masked=~mask,
            is_index_global_attn=first,
            is_global_attn=self.global_tokens > 0,
        )
        return self.out(y)
