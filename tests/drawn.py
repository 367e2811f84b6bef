"""What property tests draw from: geometries with all that goes into the operation, as small odd sizes in float64."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from longshort import Causal, RelativePositions, Segments, Tiles, long_short_attention

BATCH, HEADS, WIDTH = 2, 3, 4


@dataclass
class Call:
    """Arguments of long_short_attention."""

    tensors: list  # q, k, v, k_global, v_global
    keywords: dict

    def __call__(self, impl, **changes):
        return long_short_attention(*self.tensors, impl=impl, **{**self.keywords, **changes})

    def leaves(self):
        """All that can have a gradient."""
        tables = [*(self.keywords.get("positions") or ()), self.keywords.get("bias")]
        return [t.requires_grad_() for t in [*self.tensors, *tables] if t is not None]

    def but(self, **changes):
        return replace(self, keywords={**self.keywords, **changes})


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def call(geometry, queries, rows, keys=None, **keywords):
    keys = queries if keys is None else keys
    q = randn(BATCH, HEADS, queries, WIDTH)
    k, v = (randn(BATCH, HEADS, keys, WIDTH) for _ in range(2))
    k_global, v_global = (randn(BATCH, HEADS, rows, WIDTH) for _ in range(2))
    return Call([q, k, v, k_global, v_global], {"geometry": geometry, **keywords})


def masks(length):
    """Padding of any kind; now and then a sequence that is nothing else."""
    one = st.one_of(st.lists(st.booleans(), min_size=length, max_size=length), st.just([False] * length))
    both = st.lists(one, min_size=BATCH, max_size=BATCH)
    return both.map(lambda m: torch.tensor(m, dtype=torch.bool).view(BATCH, length))


def perhaps(masks):
    return st.one_of(st.none(), masks)


@st.composite
def sequences(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    window, n = draw(st.integers(0, 40)), draw(st.integers(1, 90))
    rows = draw(st.integers(0 if window else 1, 5))
    return call(Segments(window), n, rows, mask=draw(perhaps(masks(n))), mask_global=draw(perhaps(masks(rows))))


@st.composite
def texts(draw):
    """A block of a text that starts anywhere in it, with the cache that stands before it, whole or cut."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    segment, rank = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["sliding", "segment"]))
    window = draw(st.integers(segment if kind == "sliding" else 1, segment + 30))
    geometry = Causal(window, segment, rank, kind)
    start, n = draw(st.integers(0, 60)), draw(st.integers(1, 90))
    keys = n + draw(st.integers(0, start))
    rows = geometry.rows_before(start + n) - rank * draw(st.integers(0, geometry.rows_before(start) // max(rank, 1)))
    tables = None
    if draw(st.booleans()):
        biases = [randn(HEADS, WIDTH) for _ in range(2)]
        tables = RelativePositions(*biases, *(randn(HEADS, size, WIDTH) for size in (geometry.span, rows + 1)))
    padding = dict(mask=draw(perhaps(masks(keys))), mask_global=draw(perhaps(masks(rows))))
    return call(geometry, n, rows, keys, start=start, positions=tables, **padding)


@st.composite
def images(draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    window, height, width = draw(st.integers(0, 9)), draw(st.integers(1, 14)), draw(st.integers(1, 14))
    rows = draw(st.integers(0 if window else 1, 4))
    geometry = Tiles(window, height, width)
    bias = randn(HEADS, geometry.offsets, geometry.offsets) if window and draw(st.booleans()) else None
    padding = dict(mask=draw(perhaps(masks(height * width))), mask_global=draw(perhaps(masks(rows))))
    return call(geometry, height * width, rows, bias=bias, **padding)


calls = st.one_of(sequences(), texts(), images())
