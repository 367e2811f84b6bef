"""FlexAttention on the long-short mask: the same pairs through PyTorch's own compiler, without positions or bias.

Keys are followed by the rows, as one sequence of N + R.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from longshort.geometry import Geometry, Tiles

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def flexed(geometry: Geometry, tokens: int, rows: int, device: torch.device) -> Callable[..., Tensor]:
    """attend(q, k, v), compiled when first called."""
    torch.compiler.reset()  # after eight sizes the compiler would give up and run the dense form
    mask = create_block_mask(mask_of(geometry, tokens, rows, device), None, None, tokens, tokens + rows, device=device)
    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda q, k, v: attend(q, k, v, block_mask=mask)


def mask_of(geometry: Geometry, tokens: int, rows: int, device: torch.device) -> Mask:
    """The predicate over query and key; keys from `tokens` on are rows."""

    def sees(i: Tensor, j: Tensor) -> Tensor:
        return ((j < tokens) & geometry.sees(i, j)) | ((j >= tokens) & geometry.sees_row(i, j - tokens))

    if not isinstance(geometry, Tiles):
        return lambda b, h, i, j: sees(i, j)
    # Group after group, as FlexAttention can skip only whole blocks of neighbours. The tokens being random, to reorder
    # them is to reorder the mask.
    order = torch.cat([by_group(geometry), torch.arange(tokens, tokens + rows)]).to(device)
    return lambda b, h, i, j: sees(order[i], order[j])


def by_group(geometry: Tiles) -> Tensor:
    """The tokens of a grid, home group after home group."""
    window = max(geometry.window, 1)
    token = torch.arange(geometry.height * geometry.width)
    y, x = token // geometry.width, token % geometry.width
    return (y // window * geometry.width + x // window).argsort(stable=True)
