"""Full attention over padded sequences at the price of their real tokens, by PyTorch's flash attention for sequences of
any lengths that follow one another.

B batch, H heads, N tokens, D head width, T = B · N.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor


def packable(q: Tensor) -> bool:
    """Whether there is a kernel for such queries, and not for export, which is for any machine."""
    fits = q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 192 and q.numel() > 0
    return fits and q.device.type == "cuda" and flash_on(q.device) and not torch.compiler._is_exporting_flag


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def flash_on(device: torch.device) -> bool:
    modern = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    wanted = torch.backends.cuda.flash_sdp_enabled()  # as of scaled_dot_product_attention
    return modern and wanted and torch.backends.cuda.is_flash_attention_available()


def packed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float = 0.0) -> Tensor:
    """q, k, v: [B, H, N, D]; mask: [B, N], True on real tokens, which see each other. The others come to 0."""
    n = q.shape[2]
    tokens, places, starts = packing(mask)
    real = mask.flatten()[tokens, None, None]  # [T, 1, 1]
    # One by one: as a stack, torch 2.11 compiles them to a tensor that is read with other strides than it is written.
    flat = (rearrange(t, "b h n d -> (b n) h d") for t in (q, k, v))
    q, k, v = (torch.where(real, Reorder.apply(t, tokens, places), 0.0) for t in flat)
    y = torch.where(real, flash(q, k, v, starts, n, dropout), 0.0)
    return rearrange(Reorder.apply(y, places, tokens), "(b n) h d -> b h n d", n=n)


def flash(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, most: int, dropout: float) -> Tensor:
    """[T, H, D] each; sequence i is starts[i] to starts[i + 1], and has `most` tokens at most. After the last one
    anything may stand, in the result as in the gradients."""
    y: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, most, most, dropout, False, False)[0]
    return y


def packing(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How to move the real tokens to the front: the token at each place, the place of each token, both [T], and where
    in that order each sequence starts, [B + 1], the end of the last one included."""
    real = mask.flatten()
    starts = F.pad(mask.sum(1).cumsum(0), (1, 0))
    places = torch.where(real, real.cumsum(0) - 1, starts[-1] + (~real).cumsum(0) - 1)
    tokens = torch.empty_like(places).scatter(0, places, torch.arange(len(places), device=mask.device))
    return tokens, places, starts.to(torch.int32)


class Reorder(torch.autograd.Function):
    """x[order], where `inverse` is the order that undoes it: with that, its gradient is as cheap as itself."""

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        return x[order]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return Reorder.apply(gradient, inverse, order), None, None
