"""The language model we are compared with: a plain GPT with PyTorch's fused full attention and no cache.

B batch, N tokens, C width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longshort.lab.bench.full import FullCausalAttention
from longshort.models.charlm import CharLMConfig
from longshort.nn.blocks import FeedForward


class GPTBlock(nn.Module):
    def __init__(self, config: CharLMConfig) -> None:
        super().__init__()
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = FullCausalAttention(config.width, config.heads)
        self.feedforward = FeedForward(config.width, config.feedforward, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feedforward(self.feedforward_norm(x)))


class GPT(nn.Module):
    """Layers, widths and dropouts of a character model, full attention in place of long-short, learned positions."""

    def __init__(self, config: CharLMConfig, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(length, config.width)
        self.blocks = nn.ModuleList(GPTBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens.long()) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embedding.weight.T
