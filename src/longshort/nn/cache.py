"""What a causal layer carries from one block of a text to the next.

B batch, H heads, W local tokens kept, S·R rows, P tokens of the unfinished segment, D head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.geometry import Causal
from longshort.ops import RelativePositions

TENSORS, MASKS = ("k", "v", "k_global", "v_global", "logits"), ("mask", "mask_global")


@dataclass(frozen=True, eq=False)
class CausalCache:
    """Made by CausalLongShortAttention, continued by the same layer."""

    k: Tensor  # [B, H, W, D], normalised keys of the last tokens
    v: Tensor  # [B, H, W, D]
    k_global: Tensor  # [B, H, S·R, D], normalised rows of the finished segments
    v_global: Tensor  # [B, H, S·R, D]
    logits: Tensor  # [B, P, H·R], projection logits of the tokens of the unfinished segment
    length: int  # tokens of the text so far, those no longer kept included
    geometry: Causal  # of the layer
    tables: RelativePositions | None = None  # of positions, where no gradient is wanted
    mask: Tensor | None = None  # [B, W], False where k and v hold no token; None: they hold one everywhere
    mask_global: Tensor | None = None  # [B, S·R], the same for rows

    @property
    def batch(self) -> int:
        return self.k.shape[0]

    @property
    def nbytes(self) -> int:
        held = [t for name in TENSORS + MASKS if (t := getattr(self, name)) is not None]
        return sum(t.numel() * t.element_size() for t in held)

    def detach(self) -> CausalCache:
        """The same without a gradient."""
        return self._map(TENSORS, lambda t: t.detach())

    def to(self, *args: Any, **kwargs: Any) -> CausalCache:
        """On another device or in another dtype, as Tensor.to."""
        made = self._map(TENSORS, lambda t: t.to(*args, **kwargs))
        return replace(made._map(MASKS, lambda t: t.to(made.k.device)), tables=None)  # which are made anew there

    def last(self, memory: int | None) -> CausalCache:
        """What is left when only rows of the last `memory` tokens, in whole segments, are kept; None: all are.

        `length` becomes the least that means the same to the layer, for how much text was forgotten does not matter:
        a cache that no longer grows is of one length for good, and compiled code is made for one length.
        """
        g = self.geometry
        rows = self.k_global.shape[2]
        if memory is not None:
            if memory < 0:
                raise ValueError(f"memory must not be negative, got {memory}")
            rows = min(rows, g.rows_before(memory))
        step = g.segment if g.kind == "sliding" else math.lcm(g.segment, g.window)  # where windows start
        needed = max(self.k.shape[2], rows // max(g.rank, 1) * g.segment)
        return replace(
            self,
            k_global=newest(self.k_global, rows),
            v_global=newest(self.v_global, rows),
            mask_global=None if self.mask_global is None else newest(self.mask_global, rows, dim=1),
            length=self.length - (self.length - needed) // step * step,
        )

    def filled(self, memory: int | None) -> CausalCache:
        """The same in the shape of a full cache of `memory`: what is missing is there, and masked. None: as it is.

        Compiled code and CUDA graphs are made for a shape: a text then has as many as a segment has tokens, from its
        start on.
        """
        if memory is None:
            return self
        g, full = self.geometry, self.last(memory)
        tokens = g.kept - full.k.shape[2]
        rows = g.rows_before(memory) - full.k_global.shape[2]
        if tokens <= 0 and rows <= 0:
            return full
        batch, device = self.batch, self.k.device
        mask, mask_global = (
            torch.ones(batch, t.shape[2], dtype=torch.bool, device=device) if known is None else known
            for known, t in ((full.mask, full.k), (full.mask_global, full.k_global))
        )
        made = replace(
            full,
            k=F.pad(full.k, (0, 0, tokens, 0)),
            v=F.pad(full.v, (0, 0, tokens, 0)),
            k_global=F.pad(full.k_global, (0, 0, rows, 0)),
            v_global=F.pad(full.v_global, (0, 0, rows, 0)),
            mask=F.pad(mask, (tokens, 0)),
            mask_global=F.pad(mask_global, (rows, 0)),
        )
        return made.last(memory)  # which counts the length anew

    def reorder(self, index: Tensor) -> CausalCache:
        """Sequence i of the new batch continues sequence index[i] of this one, as beam search needs."""
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"index must be a tensor with one axis of integers, got {index}")
        return self._map(TENSORS + MASKS, lambda t: t.index_select(0, index))

    def _map(self, names: tuple[str, ...], f: Any) -> CausalCache:
        return replace(self, **{name: f(t) for name in names if (t := getattr(self, name)) is not None})


def newest(t: Tensor, rows: int, dim: int = 2) -> Tensor:
    """The last rows of [B, H, any, D]: the tensor itself or a copy, never a view, which would keep the others alive and
    for which compiled code is made anew."""
    older = t.shape[dim] - rows
    return t.narrow(dim, older, rows).clone(memory_format=torch.contiguous_format) if older else t


torch.serialization.add_safe_globals(
    [CausalCache, Causal, RelativePositions]
)  # torch.load takes a saved cache as it is
torch.export.register_dataclass(CausalCache, serialized_type_name="longshort.CausalCache")  # a tree of tensors
