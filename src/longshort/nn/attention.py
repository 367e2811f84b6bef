"""Long-short attention over a sequence and over a grid.

B batch, N tokens, C width, H heads, D head width, R rank, G global tokens.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from longshort.geometry import Geometry, Segments, Tiles
from longshort.nn.fused import fusible, run_fused, unwatched
from longshort.nn.norm import DualLN
from longshort.nn.order import Order
from longshort.nn.positions import rotated, turns
from longshort.ops import (
    Implementation,
    RelativePositions,
    check_implementation,
    dynamic_projection,
    long_short_attention,
)
from longshort.ops.check import check_count, check_mask, check_size
from longshort.ops.precision import autocast_dtype

GlobalsSee = Literal["outputs", "tokens"]


class Projections(nn.Module):
    """What every long-short layer has: the projections to queries, keys, values, row logits and output, and DualLN."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int,
        bias: bool,
        dropout: float,
        dual_norm: bool,
        eps: float,
        impl: Implementation,
    ) -> None:
        super().__init__()
        if width < 1 or heads < 1 or width % heads:
            raise ValueError(f"width {width} is not divisible by heads {heads}")
        if rank < 0:
            raise ValueError(f"rank must not be negative, got {rank}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
        check_implementation(impl)
        self.width, self.heads, self.rank, self.dropout, self.impl = width, heads, rank, dropout, impl
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))
        with warnings.catch_warnings():  # rank 0 makes an empty W_P, which PyTorch warns of initialising
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            self.rows = nn.Linear(width, heads * rank)  # has its bias even where the others have none
        self.norm = DualLN(width, enabled=dual_norm, eps=eps, impl=impl)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values before DualLN, [B, N, C]; in one product, unless someone watches or changed one."""
        three = (self.query, self.key, self.value)
        biased = {m.bias is not None for m in three}
        plain = all(type(m) is nn.Linear and unwatched(m) for m in three) and not _has_any_global_hook()
        if len(biased) > 1 or not plain:
            return self.query(x), self.key(x), self.value(x)
        weight = torch.cat([m.weight for m in three])
        q, k, v = F.linear(x, weight, torch.cat([m.bias for m in three]) if biased == {True} else None).chunk(3, dim=2)
        return q, k, v

    def split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads)

    def merge(self, x: Tensor) -> Tensor:
        return rearrange(x, "b h n d -> b n (h d)")

    def distil(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows of keys and of values before LN_G, [B, H, R, D], from tokens x and their k and v."""
        return dynamic_projection(self.rows(x).to(k.dtype), k, v, mask=mask, impl=self.impl)

    def normalise_rows(self, rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """LN_G over all heads together."""
        k, v = (self.split(t) for t in self.norm.global_(*(self.merge(t) for t in rows)))
        return k, v

    def operator_for(
        self,
        x: Tensor,
        geometry: Geometry,
        mask: Tensor | None = None,
        *,
        positions: RelativePositions | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """The kernels for the layer's attention over x, from the start of a text, and what they take beside it."""
        from longshort.ops.triton import operator_for

        scale = (self.width // self.heads) ** -0.5
        return operator_for(x, geometry, mask, None, positions, bias, self.attention_dropout, 0, scale, x.shape[1])

    @property
    def attention_dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def check_input(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[2] != self.width or x.shape[1] < 1:
            raise ValueError(f"x must be [batch, at least 1 token, width {self.width}], got {tuple(x.shape)}")
        weight = self.query.weight
        if x.device != weight.device and unwatched(self.query):  # or someone brings the weights when they are used
            raise ValueError(f"x is on {x.device} but the layer is on {weight.device}")
        if not x.is_floating_point() or (x.dtype != weight.dtype and autocast_dtype(x) is None):
            raise ValueError(f"x is {x.dtype} but the layer is {weight.dtype}: convert one of them")

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, rank={self.rank}, dropout={self.dropout}"


class LongShortAttention(Projections):
    """Bidirectional attention over a sequence of any length, linear in it.

    Each token sees its home segment of `window` tokens, half a window on either side, `rank` rows distilled from the
    whole sequence, and the `global_tokens` first tokens of x. A global token sees the other global tokens and, of all
    the rest, what they came to ("outputs", the released vision models' way) or their keys and values ("tokens", as in
    full attention). With `rotary`, queries and keys are turned by their positions, and rows are distilled from turned
    keys; global tokens have no position.

        attention = LongShortAttention(width=256, heads=8, window=64, rank=32)
        y = attention(x, mask)      # x: [B, N, 256]; mask: [B, N] bool, True on real tokens
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        rank: int,
        bias: bool = True,
        dropout: float = 0.0,
        global_tokens: int = 0,
        globals_see: GlobalsSee = "outputs",
        rotary: bool = False,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
    ) -> None:
        super().__init__(width, heads, rank=rank, bias=bias, dropout=dropout, dual_norm=dual_norm, eps=eps, impl=impl)
        self.geometry = Segments(window)
        self.global_tokens = _checked(window, rank, global_tokens)
        if globals_see not in get_args(GlobalsSee):
            raise ValueError(f"globals_see must be 'outputs' or 'tokens', got {globals_see!r}")
        self.globals_see = globals_see
        self.rotary = rotary
        if rotary and width // heads % 2:
            raise ValueError(f"rotary positions turn pairs of features, but heads are {width // heads} wide")

    def forward(
        self, x: Tensor, mask: Tensor | None = None, count: int | None = None, order: Order | None = None
    ) -> Tensor:
        """count: the first so many tokens' output is wanted alone; of global tokens it costs less than all.

        order: in place of mask and count, for padding and global tokens that stand anywhere.
        """
        if order is not None:
            if mask is not None or count is not None:
                raise ValueError("give mask and count, or an order, which has its own mask")
            self.check_input(x)
            y = self.attend(order.read(x), order.mask, order.global_tokens)
            return order.put_back(y)
        check_count(count, x)
        y = self.attend(x, mask, self.global_tokens, others=count is None or count > self.global_tokens)
        return y if count is None else y[:, :count]

    def attend(self, x: Tensor, mask: Tensor | None, global_tokens: int, others: bool = True) -> Tensor:
        return attend(
            self, x, mask, self.geometry, global_tokens, rotary=self.rotary, others=others, see=self.globals_see
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.geometry.window}, global_tokens={self.global_tokens}"


class GridLongShortAttention(Projections):
    """Attention over the tokens of an image of any height and width, row by row; linear in their number.

    Each token sees its home group of window × window tokens grown by half a window on all sides, `rank` rows distilled
    from the whole image, and the `global_tokens` first tokens of x. With `relative_bias`, a bias per head and offset is
    learned for local scores.

        attention = GridLongShortAttention(width=96, heads=3, window=7, rank=8)
        y = attention(x, size=(56, 40))      # x: [B, 56 · 40, 96]
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        rank: int,
        bias: bool = True,
        relative_bias: bool = False,
        dropout: float = 0.0,
        global_tokens: int = 0,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
    ) -> None:
        super().__init__(width, heads, rank=rank, bias=bias, dropout=dropout, dual_norm=dual_norm, eps=eps, impl=impl)
        self.window = window
        self.global_tokens = _checked(window, rank, global_tokens)
        offsets = Tiles(window, 1, 1).offsets
        if relative_bias and not offsets:
            raise ValueError("relative_bias is for local scores, but window is 0")
        self.relative_bias = nn.Parameter(torch.zeros(heads, offsets, offsets)) if relative_bias else None

    def forward(self, x: Tensor, size: tuple[int, int], mask: Tensor | None = None) -> Tensor:
        check_size(x, size, self.global_tokens)
        return attend(self, x, mask, Tiles(self.window, *size), self.global_tokens, self.relative_bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}, global_tokens={self.global_tokens}"


def attend(
    layer: Projections,
    x: Tensor,
    mask: Tensor | None,
    geometry: Segments | Tiles,
    global_tokens: int,
    bias: Tensor | None = None,
    rotary: bool = False,
    others: bool = True,
    see: GlobalsSee = "outputs",
) -> Tensor:
    """The layer that sequences and grids share. x: [B, G + N, C], global tokens first.

    others: whether the output of tokens that are not global is wanted. see: of those, what global tokens see.
    """
    layer.check_input(x)
    check_mask("mask", mask, x, x.shape[1])
    if x.shape[1] <= global_tokens:
        raise ValueError(f"x has {x.shape[1]} tokens, of which {global_tokens} are global: none is left")
    if mask is not None:
        x = x.masked_fill(~mask[..., None], 0.0)  # whatever stands in the padding, NaN included, reaches no one
    if global_tokens == 0 and not rotary and fusible(layer, x, geometry):
        given = layer.operator_for(x, geometry, mask, bias=None if bias is None else bias.to(x.dtype))
        return run_fused(layer, x, *given, mask=mask, segment=None)[0]
    _, rest = cut(x, global_tokens, 1)
    q, k, v = layer.project(x)
    return attend_from(layer, q, k, v, rest, mask, geometry, global_tokens, bias, rotary, others, see)


def attend_from(
    layer: Projections,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rest: Tensor,
    mask: Tensor | None,
    geometry: Segments | Tiles,
    global_tokens: int,
    bias: Tensor | None = None,
    rotary: bool = False,
    others: bool = True,
    see: GlobalsSee = "outputs",
) -> Tensor:
    """The same from queries, keys and values before DualLN, [B, G + N, C]. rest: what logits are made of, [B, N, C]."""
    q = layer.split(q)  # [B, H, G + N, D]
    k, v = (layer.split(t) for t in layer.norm.local(k, v))
    (q_first, q), (k_first, k), (v_first, v) = (cut(t, global_tokens, 2) for t in (q, k, v))
    mask_first, mask_rest = (None, None) if mask is None else cut(mask, global_tokens, 1)
    if rotary:
        turned = turns(q, 0, q.shape[2])
        q, k = rotated(q, turned), rotated(k, turned)

    k_rows, v_rows = layer.normalise_rows(layer.distil(rest, k, v, mask_rest))
    y = long_short_attention(
        q,
        k,
        v,
        torch.cat([k_first, k_rows], dim=2),
        torch.cat([v_first, v_rows], dim=2),
        geometry=geometry,
        mask=mask_rest,
        mask_global=None if mask_first is None else nn.functional.pad(mask_first, (0, layer.rank), value=True),
        bias=None if bias is None else bias.to(q.dtype),
        dropout=layer.attention_dropout,
        impl=layer.impl,
    )
    if global_tokens:  # they see each other and the other tokens, or as keys and values both what those came to
        k_rest, v_rest = (y, y) if see == "outputs" else (k, v)
        first = long_short_attention(
            q_first,
            k_first,
            v_first,
            torch.cat([k_first, k_rest], dim=2),
            torch.cat([v_first, v_rest], dim=2),
            geometry=Segments(0),
            mask=mask_first,
            mask_global=mask,
            dropout=layer.attention_dropout,
            impl=layer.impl,
        )
        y = torch.cat([first, y], dim=2) if others else first
    return layer.out(layer.merge(y))


def cut(t: Tensor, at: int, dim: int) -> tuple[Tensor, Tensor]:
    if at == 0:  # cutting off nothing would copy the gradient
        return t.detach().narrow(dim, 0, 0), t
    first, rest = t.split([at, t.shape[dim] - at], dim=dim)
    return first, rest


def _checked(window: int, rank: int, global_tokens: int) -> int:
    if window == 0 and rank == 0:
        raise ValueError("window and rank are both 0: nothing to attend to")
    if global_tokens < 0:
        raise ValueError(f"global_tokens must not be negative, got {global_tokens}")
    return global_tokens
