"""The demo: who sees whom as a figure, and the time of both attentions over lengths on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longshort.analysis.visibility import draw_visibility
from longshort.bench.attention import machine
from longshort.bench.lengths import LENGTHS, Timed, draw_lengths, time_over_lengths

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console
    from rich.table import Table


def demo(out: Path, *, console: Console, lengths: Sequence[int] = LENGTHS) -> list[Path]:
    """Write the two figures into the folder `out`, print the times, return the paths."""
    from rich.progress import track

    out.mkdir(parents=True, exist_ok=True)
    visibility, times = out / "visibility.png", out / "lengths.png"
    draw_visibility(visibility)
    timing = time_over_lengths(lengths)
    results = list(track(timing, "timing both attentions", total=len(lengths), console=console))
    draw_lengths(results, times, machine=machine())
    console.print(machine(), soft_wrap=True, highlight=False)
    console.print(table_of(results))
    for path, what in {visibility: "who sees whom", times: "time against length"}.items():
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)
    return [visibility, times]


def table_of(results: list[Timed]) -> Table:
    from rich.table import Table

    table = Table(title="forward + backward, float32", title_justify="left")
    for column in ("tokens", "long-short, ms", "full attention, ms", "ratio"):
        table.add_column(column, justify="right")
    for r in results:
        table.add_row(f"{r.tokens:,}", f"{r.ours_ms:.1f}", f"{r.theirs_ms:.1f}", f"{r.ratio:.1f}×")
    return table
