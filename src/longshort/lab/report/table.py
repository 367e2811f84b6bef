"""What was found of each line, beside the paper's, as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longshort.lab.recipes.lra_table import Line

NOT_RUN = "not yet run"
COLUMNS = ("attention", "paper, %", "ours, %", "paper, GMACs", "ours, GMACs", "ms a step")
COLUMNS_PERTURBED = ("task", "attention", "paper, %: none / insertion / deletion", "ours, %")


@dataclass
class Found:
    """Of one line: what its runs found, by seed; and what was measured of it."""

    line: Line
    accuracy: dict[str, list[float]] = field(default_factory=dict)  # of each test set, in %
    macs: float | None = None  # in G
    ms: float | None = None
    machine: str = ""  # on which a step took so long
    missing: str = ""
    about: str = ""  # what is to be known of the data


def markdown(found: Sequence[Found]) -> str:
    """A table for each task, the paper's Table 2, and what steps were timed on."""
    parts = []
    for task in dict.fromkeys(f.line.task for f in found):
        lines = [f for f in found if f.line.task == task]
        notes = [text for text in (task.note, lines[0].about, lines[0].missing) if text]
        parts.append("\n\n".join([f"### {task.title}", table(COLUMNS, map(row, lines)), *notes]))
    perturbed = [f for f in found if f.line.insertion is not None]
    if perturbed:
        second = table(COLUMNS_PERTURBED, map(row_perturbed, perturbed))
        parts.append(f"### Test-time insertion and deletion (Table 2)\n\n{second}")
    machines = dict.fromkeys(f.machine for f in found if f.machine)
    if machines:
        parts.append(f"Steps were timed on {'; '.join(machines)}.")
    return "\n\n".join(parts)


def row(f: Found) -> tuple[str, ...]:
    line = f.line
    return (
        line.attention,
        number(line.paper, line.deviation),
        ours(f),
        number(line.macs),
        number(f.macs),
        number(f.ms),
    )


def row_perturbed(f: Found) -> tuple[str, ...]:
    paper = " / ".join(number(value) for value in (f.line.paper, f.line.insertion, f.line.deletion))
    means = [f"{statistics.mean(f.accuracy[name]):.2f}" for name in ("test", "insertion", "deletion") if f.accuracy]
    return f.line.task.name, f.line.attention, paper, " / ".join(means) or NOT_RUN


def ours(found: Found) -> str:
    values = found.accuracy.get("test", [])
    return f"{spread(values)} (1 seed)" if len(values) == 1 else spread(values)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, f"|{'---|' * len(columns)}", *lines])


def number(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds; of one, its value."""
    if not values:
        return NOT_RUN
    off = f" ± {statistics.stdev(values):.2f} ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{off}"
