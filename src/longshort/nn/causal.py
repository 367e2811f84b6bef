"""Long-short attention over a text that is read from left to right, in one pass, in blocks or token by token.

B batch, N tokens, C width, H heads, D head width, R rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.geometry import Causal
from longshort.nn.attention import Projections
from longshort.nn.cache import CausalCache
from longshort.nn.fused import fusible, run_fused
from longshort.nn.positions import RotaryPositions, TransformerXLPositions
from longshort.ops import Implementation, RelativePositions, dynamic_projection, long_short_attention

ROOM = 256  # rows that kept tables grow by at a time


class Seen(NamedTuple):
    """What a block sees: first what the cache has, then its own."""

    k: Tensor  # [B, H, M, D]
    v: Tensor
    k_global: Tensor  # [B, H, rows, D]
    v_global: Tensor
    logits: Tensor  # [B, any, H·R], of the projection, of the tokens after the last segment finished before the block
    length: int  # of the text, with this block
    mask: Tensor | None = None  # [B, M], where the cache holds less than it has room for
    mask_global: Tensor | None = None  # [B, rows]


class CausalLongShortAttention(Projections):
    """Causal attention: each token sees a window of its past and `rank` rows of every segment finished before its own.

        attention = CausalLongShortAttention(width=512, heads=8, window=512, segment=16, rank=1)
        y, cache = attention(x)                 # x: [B, N, 512]
        y, cache = attention(more, cache)       # the same as one pass over both

    The cache carries no gradient. It grows by `rank` rows a segment; `memory` bounds what it carries to the next call,
    to the rows of the last `memory` tokens, in whole segments (rows of the call's own segments are all seen).
    A pass over n tokens is O(n² · rank / segment) work, not linear; read in blocks with a bounded memory, it is linear.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        window: int,
        segment: int,
        rank: int,
        kind: Literal["sliding", "segment"] = "sliding",
        positions: bool | Literal["rotary"] = True,
        bias: bool = False,
        dropout: float = 0.0,
        memory: int | None = None,
        dual_norm: bool = True,
        eps: float = 1e-5,
        impl: Implementation = "auto",
    ) -> None:
        super().__init__(width, heads, rank=rank, bias=bias, dropout=dropout, dual_norm=dual_norm, eps=eps, impl=impl)
        self.geometry = Causal(window, segment, rank, kind)
        if memory is not None and memory < 0:
            raise ValueError(f"memory must not be negative, got {memory}")
        self.memory = memory
        if positions == "rotary" and width // heads % 2:
            raise ValueError(f"rotary positions turn pairs of features, but heads are {width // heads} wide")
        if positions not in (True, False, "rotary"):
            raise ValueError(f"positions must be True (Transformer-XL's), 'rotary' or False, got {positions!r}")
        self.positions = TransformerXLPositions(width, heads) if positions is True else None
        self.rotary = RotaryPositions() if positions == "rotary" else None

    def forward(self, x: Tensor, cache: CausalCache | None = None) -> tuple[Tensor, CausalCache]:
        self.check_input(x)
        if cache is None and self.rotary is None and fusible(self, x, self.geometry, self.positions is not None):
            return self.run_fused(x)
        q, seen, tables = self.inputs(x, cache)
        y = self.attend(q, seen, tables)
        made = self.remember(seen)
        if tables is not None and not self.needs_tables_anew():
            made = replace(made, tables=tables)
        return self.out(self.merge(y)), made

    def tables(self, known: RelativePositions | None, rows: int, dtype: torch.dtype) -> RelativePositions | None:
        """Of positions. A text that is read token by token needs the same ones every time, and they cost more than all
        the rest: without gradients they stay with the cache, which is of the same weights."""
        if self.positions is None or self.needs_tables_anew():
            return None if self.positions is None else self.positions(self.geometry.span, rows, dtype)
        if known is None or known.rows.shape[1] < rows or known.rows.dtype != dtype:
            known = self.positions(self.geometry.span, (rows // ROOM + 1) * ROOM, dtype)
        return known

    def needs_tables_anew(self) -> bool:
        return torch.is_grad_enabled() or torch.compiler.is_compiling()

    def inputs(self, x: Tensor, cache: CausalCache | None) -> tuple[Tensor, Seen, RelativePositions | None]:
        """Queries [B, H, N, D], what they see, and tables of positions."""
        q, k, v = self.project(x)
        q = self.split(q)  # [B, H, N, D]
        k, v = (self.split(t) for t in self.norm.local(k, v))
        logits = self.rows(x).to(k.dtype)  # [B, N, H·R]
        tables = None
        if cache is not None:
            self.check_cache(x, cache)
            tables = cache.tables
            cache = cache.detach().to(k.dtype)
            k, v = torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2)
            logits = torch.cat([cache.logits, logits], dim=1)

        # Segments finished in this block: the tokens of the unfinished one, here or in the cache, are the last ones.
        open_tokens = logits.shape[1]
        k_open, v_open = (t[:, :, k.shape[2] - open_tokens :] for t in (k, v))
        rows = dynamic_projection(logits, k_open, v_open, segment=self.geometry.segment, impl=self.impl)
        k_global, v_global = self.normalise_rows(rows)
        seen = Seen(k, v, k_global, v_global, logits, x.shape[1])
        if cache is not None:
            k_global = torch.cat([cache.k_global, k_global], dim=2)
            v_global = torch.cat([cache.v_global, v_global], dim=2)
            masks = grown(cache.mask, k), grown(cache.mask_global, k_global)
            seen = Seen(k, v, k_global, v_global, logits, cache.length + x.shape[1], *masks)
        return q, seen, self.tables(tables, k_global.shape[2], q.dtype)

    def attend(self, q: Tensor, seen: Seen, tables: RelativePositions | None) -> Tensor:
        """The attention of the last queries of a text, [B, H, N, D]."""
        start, k, k_global = seen.length - q.shape[2], seen.k, seen.k_global
        if self.rotary is not None:
            q, k, k_global = self.rotary(q, k, k_global, self.geometry, start)
        return long_short_attention(
            q,
            k,
            seen.v,
            k_global,
            seen.v_global,
            geometry=self.geometry,
            mask=seen.mask,
            mask_global=seen.mask_global,
            positions=tables,
            dropout=self.attention_dropout,
            start=start,
            impl=self.impl,
        )

    def run_fused(self, x: Tensor) -> tuple[Tensor, CausalCache]:
        """`forward` without a cache, in one step."""
        positions = None
        if self.positions is not None:
            rows = self.geometry.rows_before(x.shape[1])
            positions = self.positions(self.geometry.span, rows, x.dtype)
        given = self.operator_for(x, self.geometry, positions=positions)
        out = run_fused(self, x, *given, mask=None, segment=self.geometry.segment)
        y, k, v, k_global, v_global, logits = out
        return y, self.remember(Seen(k, v, k_global, v_global, logits, x.shape[1]))

    def remember(self, seen: Seen) -> CausalCache:
        """The cache after this block: all a later one can see, but for rows older than `memory`."""
        unfinished = seen.length % self.geometry.segment
        first = max(seen.k.shape[2] - self.geometry.kept, 0)
        rows = seen.k_global.shape[2]
        if self.memory is not None:
            rows = min(rows, self.geometry.rows_before(self.memory))
        last = seen.k_global.shape[2] - rows
        return CausalCache(
            k=kept(seen.k[:, :, first:]),
            v=kept(seen.v[:, :, first:]),
            k_global=kept(seen.k_global[:, :, last:]),
            v_global=kept(seen.v_global[:, :, last:]),
            logits=kept(seen.logits[:, seen.logits.shape[1] - unfinished :]),
            length=seen.length,
            geometry=self.geometry,
            mask=None if seen.mask is None else kept(seen.mask[:, first:]),
            mask_global=None if seen.mask_global is None else kept(seen.mask_global[:, last:]),
        )

    def check_cache(self, x: Tensor, cache: CausalCache) -> None:
        if not isinstance(cache, CausalCache):
            raise ValueError(f"cache must be a CausalCache that this layer returned, got {type(cache).__name__}")
        if cache.batch != x.shape[0]:
            raise ValueError(
                f"cache is of batch {cache.batch} but x is of batch {x.shape[0]}; "
                "a cache continues its own sequences (cache.reorder repeats or drops some)"
            )
        theirs = (cache.k.shape[1], cache.k.shape[3], cache.geometry)
        ours = (self.heads, self.width // self.heads, self.geometry)
        if theirs != ours:
            raise ValueError(
                "cache is of another layer: {} heads of width {}, {}; expected {} of width {}, {}".format(
                    *theirs, *ours
                )
            )
        if cache.k.device != x.device:
            raise ValueError(f"cache is on {cache.k.device} but x is on {x.device}")

    def extra_repr(self) -> str:
        g = self.geometry
        return f"{super().extra_repr()}, window={g.window}, segment={g.segment}, kind={g.kind!r}, memory={self.memory}"


def grown(mask: Tensor | None, t: Tensor) -> Tensor | None:
    """The mask of a cache, [B, any], for tensors [B, H, M, D] of which it has the first: all others are there."""
    return None if mask is None else F.pad(mask, (0, t.shape[2] - mask.shape[1]), value=True)


def kept(t: Tensor) -> Tensor:
    """A copy without gradient, so that nothing of what is left out stays in memory."""
    return t.detach().clone(memory_format=torch.contiguous_format)
