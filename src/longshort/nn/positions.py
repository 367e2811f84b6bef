"""Relative positions as in Transformer-XL: sinusoids of distances, projected into tables for the operation.

H heads, D head width, T distances.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from longshort.ops import RelativePositions


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[T, width]: sines of the distances at width / 2 frequencies from 1 to 1 / 10,000, then their cosines."""
    exact = torch.float32 if distances.device.type == "mps" else torch.float64  # which Apple's GPUs do not have
    exponents = torch.arange(0, width, 2, device=distances.device, dtype=exact) / width
    angles = distances[:, None] / 10_000**exponents
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


class TransformerXLPositions(nn.Module):
    """Tables for keys (W_R) and for rows (W_G, b_G) at each distance, and the two query biases u and v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.local = nn.Linear(width, width, bias=False)
        self.rows = nn.Linear(width, width)
        self.content_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, span: int, rows: int, dtype: torch.dtype) -> RelativePositions:
        """Tables for distances 0 to span - 1 between tokens and 0 to rows - 1 between rows."""
        weight = self.local.weight
        known = sinusoids(torch.arange(max(span, rows), device=weight.device), self.width).to(weight.dtype)
        local, distant = self.local(known[:span]), self.rows(known[:rows])
        local, distant = (rearrange(t, "t (h d) -> h t d", h=self.heads) for t in (local, distant))
        return RelativePositions(*(t.to(dtype) for t in (self.content_bias, self.position_bias, local, distant)))
