"""Positions inside the kernels: from products by distance to products by key, and back.

Products of a tile of queries with T lines of a table come out by distance, d = c·T + j, and are needed by key. Query i
of the tile and key j of the tile that lies c tiles to the left are at distance c·T + i - j. So line i takes its entries
j <= i from the products with the c-th T lines, the others from those with the (c - 1)-th (`pick`), and is then rotated:
entry j becomes entry (i - j) mod T (`rotate`). The rotation is its own inverse, so gradients go back the same way. Rows
do the same with the number of rows a query sees in the place of i.

Two entries of 16 bits travel as one word; float32 stays as it is. T queries and keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pack(x, dtype: tl.constexpr, T: tl.constexpr):
    """Entries [T, T] as words [T, T / 2]."""
    if dtype == tl.float32:
        words = x
    else:
        low, high = tl.split(x.to(dtype).to(tl.uint16, bitcast=True).reshape(T, T // 2, 2))
        words = low.to(tl.uint32) | (high.to(tl.uint32) << 16)
    return words


@triton.jit
def unpack(words, dtype: tl.constexpr, T: tl.constexpr):
    if dtype == tl.float32:
        x = words
    else:
        low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
        x = tl.join(low, high).reshape(T, T).to(dtype, bitcast=True)
    return x


@triton.jit
def pick(here, nearer, by, T: tl.constexpr):
    """Line i has its entries up to by[i] from `here`, the others from `nearer`."""
    if here.dtype == tl.float32:
        picked = tl.where(tl.arange(0, T)[None, :] <= by[:, None], here, nearer)
    else:
        left = by[:, None] - 2 * tl.arange(0, T // 2)[None, :]  # a word's first entry is from here if this is >= 0
        bits = tl.where(left > 0, -1, tl.where(left == 0, 0xFFFF, 0)).to(tl.uint32, bitcast=True)
        picked = (here & bits) | (nearer & (bits ^ 0xFFFFFFFF))
    return picked


@triton.jit
def rotate(words, by, T: tl.constexpr):
    """Entry j of line i becomes entry (by[i] - j) mod T."""
    if words.dtype == tl.float32:
        rotated = tl.gather(words, (by[:, None] - tl.arange(0, T)[None, :]) & (T - 1), 1)
    else:
        # Where by is odd, words stay whole, their halves exchanged; where it is even, the halves come from neighbours.
        HALF: tl.constexpr = T // 2
        source = (by >> 1)[:, None] - tl.arange(0, HALF)[None, :]
        one = tl.gather(words, source & (HALF - 1), 1)
        other = tl.gather(words, (source - 1) & (HALF - 1), 1)
        odd = (by & 1)[:, None] == 1
        rotated = tl.where(odd, (one >> 16) | (one << 16), (one & 0xFFFF) | (other & 0xFFFF0000))
    return rotated


@triton.jit
def by_key(here, nearer, by, dtype: tl.constexpr, T: tl.constexpr):
    """Words by distance as float32 entries by key."""
    return unpack(rotate(pick(here, nearer, by, T), by, T), dtype, T).to(tl.float32)
