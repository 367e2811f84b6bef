"""Bad input is refused at the door, with the argument's name and the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from longshort.geometry import Causal, Geometry, Tiles
from longshort.ops.positions import RelativePositions


def refuse(message: str) -> NoReturn:
    raise ValueError(message)


def check_together(tensors: Mapping[str, Tensor | None]) -> None:
    """All of one dtype and on one device."""
    present = {name: t for name, t in tensors.items() if t is not None}
    (first, reference), *others = present.items()
    for name, t in others:
        if t.dtype != reference.dtype:
            refuse(f"{name} is {t.dtype} but {first} is {reference.dtype}")
        if t.device != reference.device:
            refuse(f"{name} is on {t.device} but {first} is on {reference.device}")
    if not reference.is_floating_point():
        refuse(f"{first} must be floating point, got {reference.dtype}")


def check_count(count: int | None, x: Tensor) -> None:
    """Of the first tokens of x, [B, N, C], whose output is wanted."""
    if count is not None and not 1 <= count <= x.shape[1]:
        refuse(f"count must be 1 to {x.shape[1]}, the number of tokens, got {count}")


def check_size(x: Tensor, size: tuple[int, int], global_tokens: int) -> None:
    """Of the grid whose tokens are x [B, G + height · width, C], global ones first."""
    height, width = size
    if x.dim() == 3 and x.shape[1] != global_tokens + height * width:
        refuse(
            f"size ({height}, {width}) and {global_tokens} global tokens make {global_tokens + height * width} tokens, "
            f"but x has {x.shape[1]}"
        )


def check_mask(name: str, mask: Tensor | None, like: Tensor, length: int) -> None:
    """Bool, [B, length], beside `like`, whose first axis is the batch."""
    if mask is None:
        return
    if mask.dtype is not torch.bool:
        refuse(f"{name} must be bool (True on real tokens), got {mask.dtype}")
    if mask.dim() != 2 or mask.shape[0] != like.shape[0] or mask.shape[1] != length:
        refuse(f"{name} must have shape ({like.shape[0]}, {length}), got {tuple(mask.shape)}")
    if mask.device != like.device:
        refuse(f"{name} is on {mask.device} but the tokens are on {like.device}")


def check_same_shape(names: str, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        refuse(f"{names} must have one shape, got {tuple(a.shape)} and {tuple(b.shape)}")


def check_heads(name: str, t: Tensor, q: Tensor) -> None:
    """[B, H, any, D] with the batch, heads and width of q."""
    if t.dim() != 4 or (t.shape[0], t.shape[1], t.shape[3]) != (q.shape[0], q.shape[1], q.shape[3]):
        refuse(
            f"{name} must have shape ({q.shape[0]}, {q.shape[1]}, any, {q.shape[3]}) to go with q, got {tuple(t.shape)}"
        )


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_global: Tensor,
    v_global: Tensor,
    geometry: Geometry,
    positions: RelativePositions | None,
    bias: Tensor | None,
    dropout: float,
    start: int,
) -> None:
    if q.dim() != 4:
        refuse(f"q must be [batch, heads, tokens, width], got shape {tuple(q.shape)}")
    check_heads("k", k, q)
    check_heads("k_global", k_global, q)
    check_same_shape("k and v", k, v)
    check_same_shape("k_global and v_global", k_global, v_global)
    tables = {} if positions is None else {f"positions.{name}": t for name, t in positions._asdict().items()}
    check_together({"q": q, "k": k, "v": v, "k_global": k_global, "v_global": v_global, "bias": bias, **tables})
    if not 0.0 <= dropout < 1.0:
        refuse(f"dropout must be at least 0 and below 1, got {dropout}")
    if geometry.window == 0 and k_global.shape[-2] == 0:
        refuse("window is 0 and there are no rows in k_global: nothing to attend to")
    _check_lengths(q, k, k_global, geometry, start)
    _check_tables(q, k_global, geometry, positions, bias)


def _check_lengths(q: Tensor, k: Tensor, k_global: Tensor, geometry: Geometry, start: int) -> None:
    queries, keys, rows = q.shape[-2], k.shape[-2], k_global.shape[-2]
    if isinstance(geometry, Causal):
        if start < 0:
            refuse(f"start must not be negative, got {start}")
        if keys < queries or keys > start + queries:
            refuse(f"k has {keys} tokens: expected at least q's {queries}, at most the {start + queries} of the text")
        finished = geometry.rows_before(start + queries)
        if rows > finished:
            refuse(f"k_global has {rows} rows, but {start + queries} tokens have finished only {finished}")
        return
    if keys != queries:
        refuse(f"k has {keys} tokens but q has {queries}; only the causal form takes cached keys")
    if start != 0:
        refuse(f"start is {start}; only the causal form continues a text")
    if isinstance(geometry, Tiles) and queries != geometry.height * geometry.width:
        refuse(
            f"size ({geometry.height}, {geometry.width}) has {geometry.height * geometry.width} tokens, q has {queries}"
        )


def _check_tables(
    q: Tensor, k_global: Tensor, geometry: Geometry, positions: RelativePositions | None, bias: Tensor | None
) -> None:
    heads, width = q.shape[1], q.shape[3]
    if positions is not None:
        if not isinstance(geometry, Causal):
            refuse(f"relative positions are for the causal form, not for {type(geometry).__name__}")
        else:
            for name, least in (("local", geometry.span), ("rows", k_global.shape[-2])):
                table: Tensor = getattr(positions, name)
                if table.dim() != 3 or table.shape[0] != heads or table.shape[2] != width or table.shape[1] < least:
                    refuse(f"positions.{name} must be [{heads}, {least} or more, {width}], got {tuple(table.shape)}")
        for name in ("content_bias", "position_bias"):
            if tuple(getattr(positions, name).shape) != (heads, width):
                refuse(f"positions.{name} must be [{heads}, {width}], got {tuple(getattr(positions, name).shape)}")
    if bias is not None:
        if not isinstance(geometry, Tiles):
            refuse(f"a bias table is for the 2D form, not for {type(geometry).__name__}")
        elif geometry.window == 0:
            refuse("window is 0: there are no local scores to add a bias to")
        elif tuple(bias.shape) != (heads, geometry.offsets, geometry.offsets):
            refuse(f"bias must be [{heads}, {geometry.offsets}, {geometry.offsets}], got {tuple(bias.shape)}")


def check_projection(logits: Tensor, k: Tensor, v: Tensor, segment: int | None) -> None:
    if k.dim() != 4:
        refuse(f"k must be [batch, heads, tokens, width], got shape {tuple(k.shape)}")
    check_same_shape("k and v", k, v)
    check_together({"k": k, "v": v, "logits": logits})
    batch, heads, tokens, _ = k.shape
    if logits.dim() != 3 or logits.shape[0] != batch or logits.shape[1] != tokens or logits.shape[2] % heads != 0:
        refuse(f"logits must be [{batch}, {tokens}, a multiple of {heads} heads], got {tuple(logits.shape)}")
    if tokens < 1:
        refuse("k has no tokens to project")
    if segment is not None and segment < 1:
        refuse(f"segment must be at least 1, got {segment}")
