"""What was found of each line, beside the paper's, as markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from longshort.recipes.lra_table import Line

NOT_RUN = "not yet run"
HEAD = "| attention | paper, % | ours, % | paper, GMACs | ours, GMACs | ms a step |\n|---|---|---|---|---|---|"
HEAD_PERTURBED = "| task | attention | paper, %: none / insertion / deletion | ours, % |\n|---|---|---|---|"


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
        parts.append("\n\n".join([f"### {task.title}", "\n".join([HEAD, *map(row, lines)]), *notes]))
    perturbed = [f for f in found if f.line.insertion is not None]
    if perturbed:
        rows = "\n".join([HEAD_PERTURBED, *map(row_perturbed, perturbed)])
        parts.append(f"### Test-time insertion and deletion (Table 2)\n\n{rows}")
    machines = dict.fromkeys(f.machine for f in found if f.machine)
    if machines:
        parts.append(f"Steps were timed on {'; '.join(machines)}.")
    return "\n\n".join(parts)


def row(f: Found) -> str:
    line = f.line
    cells = (
        line.attention,
        number(line.paper, line.deviation),
        ours(f),
        number(line.macs),
        number(f.macs),
        number(f.ms),
    )
    return f"| {' | '.join(cells)} |"


def row_perturbed(f: Found) -> str:
    paper = " / ".join(number(value) for value in (f.line.paper, f.line.insertion, f.line.deletion))
    means = [f"{statistics.mean(f.accuracy[name]):.2f}" for name in ("test", "insertion", "deletion") if f.accuracy]
    return f"| {f.line.task.name} | {f.line.attention} | {paper} | {' / '.join(means) or NOT_RUN} |"


def ours(found: Found) -> str:
    """Mean ± standard deviation over seeds."""
    values = found.accuracy.get("test", [])
    if not values:
        return NOT_RUN
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread} ({len(values)} {'seed' if len(values) == 1 else 'seeds'})"


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
