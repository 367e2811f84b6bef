"""Time against length: long-short attention is linear in the number of tokens, full attention quadratic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longshort.lab.bench.attention import machine
from longshort.lab.bench.full import FullAttention
from longshort.lab.bench.timing import forward_backward, milliseconds
from longshort.nn import LongShortAttention

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console

LENGTHS = (512, 1024, 2048, 4096, 8192)
LONG = 8192  # from here on three repeats are enough: the spread is small and the wait is long


@dataclass(frozen=True)
class Timed:
    tokens: int
    ours_ms: float
    theirs_ms: float

    @property
    def ratio(self) -> float:
        return self.theirs_ms / self.ours_ms


def time_over_lengths(
    lengths: Sequence[int] = LENGTHS,
    *,
    width: int = 256,
    heads: int = 8,
    window: int = 64,
    rank: int = 64,
    repeats: int = 5,
) -> Iterator[Timed]:
    """Forward + backward of both attentions at each length, one after the other; fewer repeats where they are long."""
    ours, theirs = LongShortAttention(width, heads, window=window, rank=rank), FullAttention(width, heads)
    for tokens in lengths:
        x = torch.randn(1, tokens, width)
        steps = forward_backward(ours, x), forward_backward(theirs, x)
        yield Timed(tokens, *milliseconds(*steps, repeats=min(repeats, max(3, LONG // tokens))))


def bench_lengths(out: Path, *, console: Console, lengths: Sequence[int] = LENGTHS) -> None:
    """Print the times and write the figure `out`."""
    from rich.progress import track
    from rich.table import Table

    out.parent.mkdir(parents=True, exist_ok=True)
    timing = time_over_lengths(lengths)
    results = list(track(timing, "timing both attentions", total=len(lengths), console=console))
    draw_lengths(results, out, machine=machine())
    console.print(machine(), soft_wrap=True, highlight=False)
    table = Table(title="forward + backward, float32", title_justify="left")
    for column in ("tokens", "long-short, ms", "full attention, ms", "ratio"):
        table.add_column(column, justify="right")
    for r in results:
        table.add_row(f"{r.tokens:,}", f"{r.ours_ms:.1f}", f"{r.theirs_ms:.1f}", f"{r.ratio:.1f}×")
    console.print(table)
    console.print(f"time against length: {out}", soft_wrap=True, highlight=False)


def draw_lengths(
    results: Sequence[Timed],
    path: Path,
    *,
    machine: str = "",
    ours: str = "long-short attention",
    theirs: str = "full attention",
    tokens: str = "tokens",
    step: str = "forward + backward",
) -> None:
    """Write time against length as a PNG, both axes logarithmic, with the ratio at each length."""
    from matplotlib.figure import Figure  # without pyplot a figure needs no display and is drawn by Agg
    from matplotlib.ticker import LogLocator

    lengths = [r.tokens for r in results]
    figure = Figure(figsize=(8, 5.6), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.loglog(lengths, [r.theirs_ms for r in results], "o-", color="#5c6672", label=theirs)
    axes.loglog(lengths, [r.ours_ms for r in results], "o-", color="#2f6db5", label=ours)
    for r in results:
        above: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 10, "fontweight": "bold"}
        place = (r.tokens, max(r.ours_ms, r.theirs_ms))
        axes.annotate(f"{r.ratio:.1f}×", place, (0, 8), textcoords="offset points", **above)
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.08, y=0.14)
    axes.set(xlabel=tokens, ylabel=f"milliseconds, {step}")
    axes.grid(color="#e3e6ea")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    axes.set_title(
        "Time against length (numbers: full attention's time / long-short's)", loc="left", fontsize=12, pad=24
    )
    axes.annotate(
        machine, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", fontsize=9, color="#5c6672"
    )
    figure.savefig(path, format="png")
