"""What is compared on a GPU: the sizes and the aims. Everything is bf16; aims are for forward + backward.

Full attention's times, which the aims were set by, were measured once on an H200 at these same sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longshort.geometry import Causal, Geometry, Segments, Tiles
from longshort.lab.bench.flops import Pass, products, visible_pairs

TOKENS = 65_536  # of a batch in the causal settings


@dataclass(frozen=True)
class Setting:
    """One layer at one size. The geometry says which layer it is; the causal one has positions, the grid a bias."""

    name: str
    geometry: Geometry
    batch: int
    tokens: int
    width: int
    heads: int
    rows: int  # that the operation is given
    targets: Mapping[str, float] = field(default_factory=dict)  # for layer and core: how many times faster, at least
    memory_target: float | None = None  # of the layer: times full attention's, at most
    tflops_target: float | None = None  # of the core, at least

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def flops(self, which: Pass) -> int:
        """Of the core, over the pairs that are visible."""
        pairs = self.batch * self.heads * visible_pairs(self.geometry, self.tokens, self.rows)
        return pairs * products(which, positions=isinstance(self.geometry, Causal)) * 2 * self.head_width


def settings() -> list[Setting]:
    return [
        *(causal(tokens) for tokens in (2_048, 4_096, 8_192, 16_384, 32_768, 65_536)),
        lra(4_096, window=8, rank=32, target=2.0),
        lra(4_096, window=1, rank=254, target=1.5),
        lra(16_384, window=8, rank=32),
        bidirectional(4_096, batch=16, target=5.0),
        bidirectional(16_384, batch=4, target=18.0),
        grid(56, batch=128, window=7, target=2.0),
        grid(128, batch=32, window=8, target=6.0),
        grid(256, batch=8, window=8, target=20.0),
    ]


def causal(tokens: int) -> Setting:
    """The paper's language model."""
    geometry = Causal(window=512, segment=16, rank=1)
    targets = {2_048: 1.0, 8_192: 2.0, 65_536: 7.0}
    return Setting(
        f"causal, n = {tokens:,}",
        geometry,
        batch=TOKENS // tokens,
        tokens=tokens,
        width=512,
        heads=8,
        rows=geometry.rows_before(tokens),
        targets={"layer": targets[tokens]} if tokens in targets else {},
        memory_target=2.0,
        tflops_target=250.0 if tokens == 8_192 else None,
    )


def lra(tokens: int, *, window: int, rank: int, target: float | None = None) -> Setting:
    """A layer of the Long Range Arena's models."""
    return Setting(
        f"LRA, w {window}, r {rank}, n = {tokens:,}",
        Segments(window),
        batch=32,
        tokens=tokens,
        width=64,
        heads=2,
        rows=rank,
        targets={} if target is None else {"layer": target},
    )


def bidirectional(tokens: int, *, batch: int, target: float) -> Setting:
    return Setting(
        f"bidirectional, n = {tokens:,}",
        Segments(64),
        batch=batch,
        tokens=tokens,
        width=512,
        heads=8,
        rows=64,
        targets={"core": target},
    )


def grid(side: int, *, batch: int, window: int, target: float) -> Setting:
    """The first stage of the paper's vision models, and larger images."""
    return Setting(
        f"grid, {side} × {side}",
        Tiles(window, side, side),
        batch=batch,
        tokens=side * side,
        width=96,
        heads=3,
        rows=8,
        targets={"layer": target},
    )
