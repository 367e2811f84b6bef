"""What a causal layer carries from one block of a text to the next.

B batch, H heads, W local tokens kept, S·R rows, P tokens of the unfinished segment, D head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from longshort.geometry import Causal
from longshort.ops import RelativePositions


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

    @property
    def batch(self) -> int:
        return self.k.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    def detach(self) -> CausalCache:
        """The same without a gradient."""
        return self._map(lambda t: t.detach())

    def to(self, *args: Any, **kwargs: Any) -> CausalCache:
        """On another device or in another dtype, as Tensor.to."""
        return replace(self._map(lambda t: t.to(*args, **kwargs)), tables=None)  # which are made anew there

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
            rows = min(rows, memory // g.segment * g.rank)
        step = g.segment if g.kind == "sliding" else math.lcm(g.segment, g.window)  # where windows start
        needed = max(self.k.shape[2], rows // max(g.rank, 1) * g.segment)
        return replace(
            self,
            k_global=newest(self.k_global, rows),
            v_global=newest(self.v_global, rows),
            length=self.length - (self.length - needed) // step * step,
        )

    def reorder(self, index: Tensor) -> CausalCache:
        """Sequence i of the new batch continues sequence index[i] of this one, as beam search needs."""
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"index must be a tensor with one axis of integers, got {index}")
        return self._map(lambda t: t.index_select(0, index))

    def _tensors(self) -> dict[str, Tensor]:
        others = ("length", "geometry", "tables")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}

    def _map(self, f: Any) -> CausalCache:
        return replace(self, **{name: f(t) for name, t in self._tensors().items()})


def newest(t: Tensor, rows: int) -> Tensor:
    """The last rows of [B, H, any, D]: the tensor itself or a copy, never a view, which would keep the others alive and
    for which compiled code is made anew."""
    return t if t.shape[2] == rows else t[:, :, t.shape[2] - rows :].clone(memory_format=torch.contiguous_format)


torch.serialization.add_safe_globals(
    [CausalCache, Causal, RelativePositions]
)  # torch.load takes a saved cache as it is
torch.export.register_dataclass(CausalCache, serialized_type_name="longshort.CausalCache")  # a tree of tensors
