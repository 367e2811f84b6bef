"""Vectors of tokens, with a gradient that a GPU adds up quickly where tokens are few.

T tokens, V vocabulary, C width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS = 32_768  # of all tables together
MOST = 64  # tables


class Embedding(nn.Embedding):
    """nn.Embedding for small vocabularies. A row is a token's, and all its gradients are added to it one after the
    other; where there are few rows for many tokens, a GPU waits for just that. So it adds to several tables, and then
    those."""

    @property
    def tables(self) -> int:
        """How many; one where nn.Embedding has more to do than look up."""
        plain = self.padding_idx is None and self.max_norm is None and not (self.scale_grad_by_freq or self.sparse)
        return max(1, min(MOST, ROWS // self.num_embeddings)) if plain else 1

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.is_cuda and self.tables > 1:
            return Lookup.apply(self.weight, tokens, self.tables)
        return super().forward(tokens)


class Lookup(torch.autograd.Function):
    """weight[tokens], [V, C] and any whole numbers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, tokens: Tensor, tables: int) -> Tensor:
        return nn.functional.embedding(tokens, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.rows, ctx.tables = len(inputs[0]), inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        tokens, lines = ctx.saved_tensors[0].flatten(), gradient.reshape(-1, gradient.shape[-1])  # [T], [T, C]
        exact = torch.promote_types(lines.dtype, torch.float32)
        table = torch.arange(len(tokens), device=tokens.device) % ctx.tables
        sums = lines.new_zeros(ctx.tables * ctx.rows, lines.shape[1], dtype=exact)
        sums = sums.index_add(0, table * ctx.rows + tokens, lines.to(exact))
        return sums.view(ctx.tables, ctx.rows, -1).sum(0).to(lines.dtype), None, None
