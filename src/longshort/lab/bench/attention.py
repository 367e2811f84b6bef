"""Each long-short layer against full attention on the CPU: forward + backward, float32."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from longshort.lab.bench.full import FullAttention, FullCausalAttention
from longshort.lab.bench.timing import forward_backward, milliseconds
from longshort.lab.runs.files import write_json
from longshort.nn import CausalLongShortAttention, GridLongShortAttention, LongShortAttention

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console
    from rich.table import Table

THREADS = 2


@dataclass(frozen=True)
class Case:
    name: str
    ours: nn.Module
    theirs: nn.Module
    inputs: tuple[object, ...]  # ours takes all of them, full attention the first, x
    target: float  # how many times faster ours should be


@dataclass(frozen=True)
class Measured:
    name: str
    ours_ms: float
    theirs_ms: float
    target: float

    @property
    def ratio(self) -> float:
        return self.theirs_ms / self.ours_ms


def cases() -> list[Case]:
    sequence = LongShortAttention(256, 8, window=64, rank=64)
    causal = CausalLongShortAttention(256, 8, window=128, segment=16, rank=1)
    grid = GridLongShortAttention(96, 3, window=7, rank=8, relative_bias=True)
    full = FullAttention(256, 8)
    return [
        Case("sequence, n = 4096", sequence, full, (torch.randn(1, 4096, 256),), target=3.5),
        Case("sequence, n = 8192", sequence, full, (torch.randn(1, 8192, 256),), target=6.0),
        Case("causal, n = 4096", causal, FullCausalAttention(256, 8), (torch.randn(1, 4096, 256),), target=1.5),
        Case("grid, 4 × 56 × 56", grid, FullAttention(96, 3), (torch.randn(4, 56 * 56, 96), (56, 56)), target=2.5),
    ]


def measure(case: Case, repeats: int) -> Measured:
    ours, theirs = forward_backward(case.ours, *case.inputs), forward_backward(case.theirs, case.inputs[0])
    ours_ms, theirs_ms = milliseconds(ours, theirs, repeats=repeats)
    return Measured(case.name, ours_ms, theirs_ms, case.target)


def bench_attention(cases: Iterable[Case], out: Path, *, repeats: int, console: Console) -> list[Measured]:
    """Measure the cases, showing the table as it grows; `out` holds at any time what the table shows."""
    from rich.console import Group
    from rich.live import Live

    torch.set_num_threads(THREADS)
    results: list[Measured] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    write_results(results, out, repeats)  # a path that cannot be written shows now, not after the measurements
    console.print(machine(), soft_wrap=True, highlight=False)
    try:
        with Live(console=console, transient=True) as live:
            for case in cases:
                live.update(Group(table_of(results), f"measuring {case.name} ..."), refresh=True)
                results.append(measure(case, repeats))
                write_results(results, out, repeats)
    finally:  # an interrupted run too prints what it has measured
        console.print(table_of(results))
    return results


def table_of(results: list[Measured]) -> Table:
    from rich.table import Table

    table = Table(title="forward + backward, float32", title_justify="left")
    table.add_column("case")
    for column in ("long-short, ms", "full attention, ms", "ratio", "target"):
        table.add_column(column, justify="right")
    for r in results:
        colour = "green" if r.ratio >= r.target else "red"
        ratio = f"[{colour}]{r.ratio:.2f}×[/]"
        table.add_row(r.name, f"{r.ours_ms:.1f}", f"{r.theirs_ms:.1f}", ratio, f"{r.target:.1f}×")
    return table


def write_results(results: list[Measured], out: Path, repeats: int) -> None:
    lines = [
        {"case": r.name, "ours_ms": r.ours_ms, "theirs_ms": r.theirs_ms, "ratio": r.ratio, "target": r.target}
        for r in results
    ]
    report = {"what": "forward + backward, float32", "machine": machine(), "repeats": repeats, "results": lines}
    write_json(out, report)


def machine() -> str:
    """The processor, the threads used of it, and the version of PyTorch: what a time depends on."""
    return f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
