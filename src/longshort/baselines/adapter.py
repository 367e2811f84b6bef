"""What the adapters share: the package is imported when a spec is built; tokens are padded to what it takes, and cut.

B batch, N tokens, C width.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.ops.check import check_count, check_mask


def imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; pip install 'longshort[baselines]'"
        raise ModuleNotFoundError(message, name=error.name) from error


class Adapter(nn.Module):
    """forward(x, mask=None, count=None) for 1 to max_length tokens, around an attention that takes multiples of
    `multiple` from `least` on: other lengths are padded, with a mask, and cut again.
    """

    def __init__(self, width: int, heads: int, max_length: int, *, multiple: int = 1, least: int = 1) -> None:
        super().__init__()
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        if max_length < 1 or multiple < 1:
            raise ValueError(f"max_length and what it is cut into must be at least 1, got {max_length} and {multiple}")
        self.width, self.heads, self.max_length = width, heads, max_length
        self.multiple, self.least = multiple, least

    def padded(self, tokens: int) -> int:
        return -(-max(tokens, self.least) // self.multiple) * self.multiple

    def forward(self, x: Tensor, mask: Tensor | None = None, count: int | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.width or not 1 <= x.shape[1] <= self.max_length:
            raise ValueError(
                f"x must be [batch, 1 to {self.max_length} tokens, width {self.width}], got {tuple(x.shape)}"
            )
        check_mask("mask", mask, x, x.shape[1])
        check_count(count, x)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)  # whatever stands in the padding, NaN included, reaches no one
        tokens = x.shape[1]
        missing = self.padded(tokens) - tokens
        if missing:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
            x, mask = F.pad(x, (0, 0, 0, missing)), F.pad(mask, (0, missing))
        return self.attend(x, mask)[:, : tokens if count is None else count]

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: [B, N, C], 0 in the padding, N as the package wants it. mask: [B, N]."""
        raise NotImplementedError
