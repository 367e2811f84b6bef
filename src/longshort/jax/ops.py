"""Long-short attention in JAX: the dense definition, and the same block by block in linear memory.

B batch, H heads, N queries, M keys (the queries are the last N of the M tokens), R rows, D head width; C queries of a
block, K keys of its tile, G blocks. Shapes are static, so plain Python chooses everything but the numbers. A reshape
splits or merges one axis alone: where arrays carry their sharding (jax.make_mesh), JAX knows no other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax import Array, lax

from longshort.geometry import Causal, Geometry, Segments, Tiles

Implementation = Literal["auto", "reference", "chunked"]
Number = int | Array  # of a token or a row in its text; an array where a compiled loop counts them
FEW = 16  # for this many queries the dense form does no more work than a block of the chunked one
SCORES = 1 << 25  # computed at a time by the chunked form


class RelativePositions(NamedTuple):
    """Transformer-XL's, for the causal form. With q the query, k a key, d the distance between them:

    local score  (q + content_bias)·k + (q + position_bias)·local[d],  d = t - j
    row score    q·(k_global + rows[d]),                               d = rows between the query's segment and the row
    """

    content_bias: Array  # [H, D], u in the paper
    position_bias: Array  # [H, D], v in the paper
    local: Array  # [H, span or more, D]
    rows: Array  # [H, as many as there are rows or more, D]


class Block(NamedTuple):
    """Queries, the keys around them, and who of these is there."""

    q: Array  # [B, H, C, D]
    k: Array  # [B, H, K, D]
    v: Array
    i: Array  # [C], the places of the queries in the text or on the grid
    j: Array  # [K], those of the keys
    present: Array  # [B or 1, K]
    rng: Array | None  # of dropout


class Rows(NamedTuple):
    """The rows that all blocks share."""

    k: Array  # [B, H, R, D]
    v: Array
    number: Array  # [R], counted from the start of the text
    present: Array | None  # [B, R]


def long_short_attention(
    q: Array,
    k: Array,
    v: Array,
    k_global: Array,
    v_global: Array,
    *,
    geometry: Geometry,
    mask: Array | None = None,
    mask_global: Array | None = None,
    positions: RelativePositions | None = None,
    bias: Array | None = None,
    dropout: float = 0.0,
    rng: Array | None = None,
    start: Number = 0,
    first_row: Number | None = None,
    scale: float | None = None,
    impl: Implementation = "auto",
) -> Array:
    """One softmax of every query over the keys its geometry lets it see and over the global rows: [B, H, N, D].

    q: [B, H, N, D].  k, v: [B, H, M, D]; M = N but for the causal form, where earlier tokens may stand in front.
    k_global, v_global: [B, H, R, D]; R may be 0.  mask: [B, M], True on real tokens; padding is not seen, and its
    output is 0.  mask_global: [B, R], for the rows.  positions: Transformer-XL's, for Causal.
    bias: [H, offsets, offsets], added to local scores, for Tiles.  dropout: on the weights, drawn from `rng`.
    start: place in the text of the first query, for Causal, and first_row the number of the first row; without it, the
    last row is that of the last segment finished. Both may be traced.  scale: 1 / √D unless given.
    impl: "reference" (dense, O(N²)), "chunked" (linear memory), or "auto".
    """
    check(q, k, v, k_global, v_global, geometry, mask, mask_global, positions, bias, dropout, rng, impl)
    check_place(q, k, k_global, geometry, start, first_row)
    n, keys, rows = q.shape[2], k.shape[2], k_global.shape[2]
    if first_row is None:
        first_row = geometry.rows_before(start + n) - rows if isinstance(geometry, Causal) else 0
    present = jnp.ones((1, keys), bool) if mask is None else mask
    whole = Block(q, k, v, start + jnp.arange(n), start + jnp.arange(n - keys, n), present, rng)
    shared = Rows(k_global, v_global, first_row + jnp.arange(rows), mask_global)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    attend = partial(attend_block, rows=shared, geometry=geometry, positions=positions, dropout=dropout, scale=scale)
    if impl == "reference" or (impl == "auto" and n <= FEW):
        out = attend(whole, None if bias is None else bias_between(bias, geometry, np.arange(n), np.arange(keys)))
    else:
        out = chunked(attend, whole, bias, geometry, rows)
    return out if mask is None else jnp.where(mask[:, None, keys - n :, None], out, 0)


def attend_block(
    block: Block,
    bias: Array | None,
    *,
    rows: Rows,
    geometry: Geometry,
    positions: RelativePositions | None,
    dropout: float,
    scale: float,
) -> Array:
    """The definition, for queries whose tile holds every key they see. bias: [H, C, K]."""
    exact = jnp.promote_types(block.q.dtype, jnp.float32)
    product = partial(jnp.einsum, preferred_element_type=exact)
    q, i = block.q * jnp.asarray(scale, block.q.dtype), block.i[:, None]  # [B, H, C, D], [C, 1]
    far = product("bhcd,bhrd->bhcr", q, rows.k)
    if positions is not None and isinstance(geometry, Causal):
        u, p = (t[:, None] * jnp.asarray(scale, q.dtype) for t in positions[:2])
        local = product("bhcd,bhkd->bhck", q + u, block.k) + by_key(q + p, positions.local, block.k.shape[2], product)
        far = far + at_distance(q, positions.rows, geometry.rows_before(i) - 1 - rows.number, product)
    else:
        local = product("bhcd,bhkd->bhck", q, block.k)
    if bias is not None:
        local = local + bias.astype(exact)

    sees = geometry.sees(i, block.j) & block.present[:, None]  # [B or 1, C, K]
    sees_row = geometry.sees_row(i, rows.number)[None]  # [1, C, R]
    if rows.present is not None:
        sees_row = sees_row & rows.present[:, None]
    batch = max(sees.shape[0], sees_row.shape[0])
    visible = jnp.concatenate([jnp.broadcast_to(s, (batch, *s.shape[1:])) for s in (sees, sees_row)], axis=2)[:, None]
    scores = jnp.where(visible, jnp.concatenate([local, far], axis=3), jnp.finfo(exact).min)
    weights = jnp.where(visible, jax.nn.softmax(scores, axis=3), 0)  # where nothing is visible, min made them uniform
    if dropout:
        assert block.rng is not None
        weights = jnp.where(jax.random.bernoulli(block.rng, 1 - dropout, weights.shape), weights / (1 - dropout), 0)
    values = jnp.concatenate([block.v, rows.v], axis=2)
    return product("bhck,bhkd->bhcd", weights.astype(values.dtype), values).astype(values.dtype)


def at_distance(q: Array, table: Array, distance: Array, product: Callable[..., Array]) -> Array:
    """q·table[distance], [B, H, C, R], from a table [H, distances, D]; any value where the distance is not in it."""
    if not table.shape[1]:
        return jnp.zeros((*q.shape[:3], distance.shape[1]), q.dtype)
    index = distance.clip(0, table.shape[1] - 1)[None, None]
    return jnp.take_along_axis(product("bhcd,htd->bhct", q, table), index, axis=3)


def by_key(q: Array, table: Array, keys: int, product: Callable[..., Array]) -> Array:
    """q·table[distance], [B, H, C, K], where the queries are the last C of the K keys.

    With the largest distance first, line c has its keys c places further right than line 0. Lines padded by as many
    places as there are lines, and read again as lines that are one place shorter, move line c by c places.
    """
    queries = q.shape[2]
    missing = max(keys - queries + 1 - table.shape[1], 0)  # distances of line 0 that no one sees
    table = jnp.pad(table, ((0, 0), (0, missing), (0, 0)))[:, ::-1]
    products = jnp.pad(product("bhcd,htd->bhct", q, table), ((0, 0), (0, 0), (0, 0), (0, queries)))
    lines, width = products.shape[:2], products.shape[3] - 1
    moved = products.reshape(*lines, -1)[:, :, : queries * width].reshape(*lines, queries, width)
    return moved[..., width - keys :]


class Axis(NamedTuple):
    """Blocks along one axis: `block` queries share the `tile` keys from `before` their first one on."""

    block: int
    before: int
    tile: int


def axes_of(geometry: Geometry, queries: int) -> tuple[Axis, Axis]:
    """A sequence is a grid of width 1. Blocks of whole windows have the smallest tiles."""
    if isinstance(geometry, Tiles):
        y, x = (segments_axis(geometry.axis, side, least=5) for side in (geometry.height, geometry.width))
        return y, x
    if isinstance(geometry, Segments):
        return segments_axis(geometry, queries, least=32), Axis(1, 0, 1)
    block = min(max(geometry.span // 2, 32), queries)
    return Axis(block, geometry.span - 1, geometry.span - 1 + block), Axis(1, 0, 1)


def segments_axis(rule: Segments, length: int, least: int) -> Axis:
    if not rule.window:
        return Axis(min(least, length), 0, 0)
    if rule.window >= length:
        return Axis(length, 0, length)  # one window over all
    block = -(-least // rule.window) * rule.window
    return Axis(block, rule.reach, block + 2 * rule.reach)


def chunked(
    attend: Callable[[Block, Array | None], Array], whole: Block, bias: Array | None, geometry: Geometry, rows: int
) -> Array:
    """Some blocks at a time. The backward pass computes their weights again, so that no more of them is ever kept."""
    n, lead = whole.q.shape[2], whole.k.shape[2] - whole.q.shape[2]
    size = (geometry.height, geometry.width) if isinstance(geometry, Tiles) else (n, 1)
    axes = axes_of(geometry, n)
    own = partial(tiles, size=size, axes=tuple(Axis(axis.block, 0, axis.block) for axis in axes))
    around = partial(tiles, size=size, axes=axes, lead=lead)
    blocks = Block(
        q=own(whole.q),
        k=around(whole.k),
        v=around(whole.v),
        i=own(whole.i[None, None, :, None])[:, 0, 0, :, 0],
        j=around(whole.j[None, None, :, None])[:, 0, 0, :, 0],
        present=around(whole.present[:, None, :, None])[:, :, 0, :, 0],
        rng=None,
    )  # each with the blocks first
    count, batch, heads, block, _ = blocks.q.shape
    if whole.rng is not None:
        blocks = blocks._replace(rng=jax.random.split(whole.rng, count))
    tile_bias = None if bias is None else bias_of_a_tile(bias, geometry, axes)
    at_once = count  # where the batch is a symbol, as in jax.export
    if isinstance(batch, int):
        at_once = max(1, SCORES // (batch * heads * block * (blocks.k.shape[3] + rows)))
    each = jax.checkpoint(lambda one: attend(one, tile_bias))
    out = jax.vmap(each)(blocks) if at_once >= count else lax.map(each, blocks, batch_size=at_once)
    return tokens(out, size, axes)


def tiles(x: Array, size: tuple[int, int], axes: tuple[Axis, ...], lead: int = 0) -> Array:
    """[B, H, M, E] → [G, B, H, K, E]: of each block its tile, zeros where that juts out. lead: tokens before the first
    query."""
    height, width = size
    x = x.reshape(*x.shape[:2], height + lead, width, x.shape[3])
    x = along(x, 2, axes[0], height, lead)  # [B, H, blocks, tile, width, E]
    x = along(x, 4, axes[1], width, 0)
    return rearrange(rearrange(x, "b h y ky x kx e -> (y x) b h ky kx e"), "g b h ky kx e -> g b h (ky kx) e")


def along(x: Array, dim: int, axis: Axis, length: int, lead: int) -> Array:
    """Tiles along one dimension: the whole of it, moved by 0, 1, ... blocks, side by side. No gather, and so no scatter
    in the backward pass."""
    count = -(-length // axis.block)
    views = max(-(-axis.tile // axis.block), 1)
    x = lax.slice_in_dim(x, max(lead - axis.before, 0), None, axis=dim)
    front = max(axis.before - lead, 0)
    padding = [(0, 0)] * x.ndim
    padding[dim] = (front, (count - 1 + views) * axis.block - front - x.shape[dim])
    x = jnp.pad(x, padding)
    shape = (*x.shape[:dim], count, axis.block, *x.shape[dim + 1 :])
    starts = range(0, views * axis.block, axis.block)
    moved = [lax.slice_in_dim(x, s, s + count * axis.block, axis=dim).reshape(shape) for s in starts]
    return lax.slice_in_dim(jnp.concatenate(moved, axis=dim + 1), 0, axis.tile, axis=dim + 1)


def tokens(blocks: Array, size: tuple[int, int], axes: tuple[Axis, Axis]) -> Array:
    """Blocks [G, B, H, C, D] as tokens [B, H, N, D] again."""
    height, width = size
    y, x = axes
    out = rearrange(blocks, "(gy gx) b h c d -> b h gy gx c d", gx=-(-width // x.block))
    out = rearrange(out, "b h gy gx (y x) d -> b h gy y gx x d", y=y.block)
    out = rearrange(rearrange(out, "b h gy y gx x d -> b h (gy y) gx x d"), "b h y gx x d -> b h y (gx x) d")
    return rearrange(out[:, :, :height, :width], "b h y x d -> b h (y x) d")


def bias_between(bias: Array, geometry: Geometry, i: Any, j: Any) -> Array:
    """The bias [H, N, M] of every offset (dy, dx) from key to query; any value where the offset is not in the table."""
    assert isinstance(geometry, Tiles)
    dy, dx = (a[:, None] - b for a, b in zip(np.divmod(i, geometry.width), np.divmod(j, geometry.width), strict=True))
    return bias[:, in_table(dy, geometry), in_table(dx, geometry)]


def bias_of_a_tile(bias: Array, geometry: Geometry, axes: tuple[Axis, Axis]) -> Array:
    """[H, C, K]: the same for all blocks, so that the backward pass adds up blocks first, and tables once."""
    assert isinstance(geometry, Tiles)
    dy, dx = (in_table(np.arange(a.block)[:, None] - np.arange(a.tile) + a.before, geometry) for a in axes)
    return rearrange(bias[:, dy[:, None, :, None], dx[None, :, None, :]], "h cy cx ky kx -> h (cy cx) (ky kx)")


def in_table(offset: Any, geometry: Tiles) -> Any:
    return np.clip(offset + geometry.offsets // 2, 0, geometry.offsets - 1)


def dynamic_projection(
    logits: Array, k: Array, v: Array, *, segment: int | None = None, mask: Array | None = None
) -> tuple[Array, Array]:
    """Rows of keys and of values, before LN_G: averages of k and v under a softmax of `logits` over the tokens.

    logits: [B, N, H·R], head 0's rows first.  k, v: [B, H, N, D].  mask: [B, N], True on real tokens.
    Without `segment`: the rows [B, H, R, D] of the whole sequence. With it: the rows [B, H, S·R, D] of each finished
    segment; the tokens after the last one are left out. A padded token has weight 0; where all are padded, rows are 0.
    """
    batch, heads, n, _ = k.shape
    if logits.ndim != 3 or logits.shape[:2] != (batch, n) or logits.shape[2] % heads:
        raise ValueError(f"logits must be [{batch}, {n}, {heads} heads · rank], got {logits.shape}")
    if segment is not None and segment < 1:
        raise ValueError(f"segment must be at least 1, got {segment}")
    check_mask("mask", mask, batch, n)
    length = n if segment is None else segment
    whole = n // length * length  # tokens of finished segments
    cut = partial(rearrange, pattern="b h (s l) d -> b h s l d", l=length)
    weights = rearrange(logits[:, :whole], "b (s l) f -> b s l f", l=length)
    weights = rearrange(weights, "b s l (h r) -> b h s r l", h=heads)
    weights = weights.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if mask is None:
        weights = jax.nn.softmax(weights, axis=4)
    else:
        real = rearrange(mask[:, :whole], "b (s l) -> b 1 s 1 l", l=length)
        weights = jax.nn.softmax(jnp.where(real, weights, jnp.finfo(weights.dtype).min), axis=4)
        weights = jnp.where(real, weights, 0)  # where all tokens are padded, the lowest score made them uniform
    k_rows, v_rows = (
        rearrange(jnp.einsum("bhsrl,bhsld->bhsrd", weights.astype(t.dtype), t), "b h s r d -> b h (s r) d")
        for t in (cut(k[:, :, :whole]), cut(v[:, :, :whole]))
    )
    return k_rows, v_rows


def check(
    q: Array,
    k: Array,
    v: Array,
    k_global: Array,
    v_global: Array,
    geometry: Geometry,
    mask: Array | None,
    mask_global: Array | None,
    positions: RelativePositions | None,
    bias: Array | None,
    dropout: float,
    rng: Array | None,
    impl: str,
) -> None:
    """Refuses what does not fit together, while it is traced."""
    if impl not in get_args(Implementation):
        raise ValueError(f"impl must be one of {', '.join(get_args(Implementation))}, got {impl!r}")
    if q.ndim != 4 or q.shape[2] < 1:
        raise ValueError(f"q must be [batch, heads, at least 1 token, width], got {q.shape}")
    if not jnp.issubdtype(q.dtype, jnp.floating):
        raise ValueError(f"q must be of a floating type, got {q.dtype}")
    batch, heads, n, width = q.shape
    if k.shape != v.shape or k.ndim != 4 or (k.shape[0], k.shape[1], k.shape[3]) != (batch, heads, width):
        raise ValueError(f"k and v must be [{batch}, {heads}, keys, {width}] as q is, got {k.shape} and {v.shape}")
    if k_global.shape != v_global.shape or (*k_global.shape[:2], *k_global.shape[3:]) != (batch, heads, width):
        raise ValueError(
            f"k_global and v_global must be [{batch}, {heads}, rows, {width}], got {k_global.shape}, {v_global.shape}"
        )
    if k.shape[2] != n and (not isinstance(geometry, Causal) or k.shape[2] < n):
        raise ValueError(f"there are {n} queries but {k.shape[2]} keys, of which the queries must be the last")
    if isinstance(geometry, Tiles) and n != geometry.height * geometry.width:
        raise ValueError(f"there are {n} tokens, but a grid of {geometry.height} × {geometry.width}")
    if geometry.window == 0 and k_global.shape[2] == 0:
        raise ValueError("window is 0 and there are no rows: nothing to attend to")
    if positions is not None:
        check_positions(positions, geometry, heads, width, k_global.shape[2])
    sides = geometry.offsets if isinstance(geometry, Tiles) else 0
    if bias is not None and bias.shape != (heads, sides, sides):
        raise ValueError(f"bias must be [{heads} heads, {sides} offsets, {sides} offsets], got {bias.shape}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
    if dropout and rng is None:
        raise ValueError(f"dropout {dropout} needs rng, a key to draw from")
    check_mask("mask", mask, batch, k.shape[2])
    check_mask("mask_global", mask_global, batch, k_global.shape[2])


def check_positions(positions: RelativePositions, geometry: Geometry, heads: int, width: int, rows: int) -> None:
    if not isinstance(geometry, Causal):
        raise ValueError("relative positions are for the causal form; a grid takes a bias")
    for name, table in zip(positions._fields, positions, strict=True):
        least = {"local": geometry.span, "rows": rows}.get(name)
        tall = (table.shape[1],) if least is not None and table.ndim == 3 and table.shape[1] >= least else ()
        if table.shape != (heads, *tall, width) or (least is not None and not tall):
            shape = f"[{heads}, {width}]" if least is None else f"[{heads}, {least} or more, {width}]"
            raise ValueError(f"positions.{name} must be {shape}, got {table.shape}")


def check_place(
    q: Array, k: Array, k_global: Array, geometry: Geometry, start: Number, first_row: Number | None
) -> None:
    """What is traced cannot be looked at."""
    if not isinstance(geometry, Causal):
        if not isinstance(start, int) or start or first_row is not None:
            raise ValueError("start and first_row are for the causal form")
    elif isinstance(start, int):
        end = start + q.shape[2]
        if start < 0 or k.shape[2] > end:
            raise ValueError(f"there are {k.shape[2]} keys, but the text has {end} tokens by the last query")
        if first_row is None and k_global.shape[2] > geometry.rows_before(end):
            raise ValueError(
                f"there are {k_global.shape[2]} rows, but {geometry.rows_before(end)} are finished by then"
            )


def check_mask(name: str, mask: Array | None, batch: int, length: int) -> None:
    if mask is not None and (mask.shape != (batch, length) or mask.dtype != bool):
        raise ValueError(f"{name} must be bool [{batch}, {length}], True on real tokens, got {mask.dtype} {mask.shape}")
