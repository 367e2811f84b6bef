"""`longshort report imdb`: a pretrained encoder, converted to long-short attention, on the reviews of IMDb, beside the
original cut short and the original with its positions repeated; trained alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from longshort.lab.recipes.roberta import imdb, label_of
from longshort.lab.report.runs import Wish, check_trained, tell, time_steps, timed, train_all
from longshort.lab.report.table import spread, table
from longshort.lab.train import Run

SHORT = 512  # tokens that the originals read
COLUMNS = ("checkpoint", "attention", "tokens", "test set, %", "longest tenth, %", "ms a step", "MiB", "minutes", "on")
NOTE = (
    "The checkpoint that is best on a tenth of the training set is evaluated. The longest tenth is of the test set, by "
    "tokens before any cut. Minutes are of all training, with its evaluations; steps are timed by themselves, on a GPU."
)
SETS = ("test", "longest tenth")


@dataclass(frozen=True)
class Line:
    """attention: WINDOW,RANK, or full."""

    checkpoint: str
    attention: str
    length: int
    seeds: int = 2

    @property
    def name(self) -> str:
        return f"{label_of(self.checkpoint)}/{self.attention}/{self.length}"

    @property
    def title(self) -> str:
        return "full" if self.attention == "full" else f"long-short, {self.attention}"

    def run(self, seed: int, data: Path | None = None) -> Run:
        return imdb(self.checkpoint, data, attention=self.attention, length=self.length, seed=seed)


def lines_of(checkpoint: str, length: int) -> tuple[Line, ...]:
    """checkpoint: as it was before any conversion."""
    full = [Line(checkpoint, "full", tokens) for tokens in dict.fromkeys((SHORT, length))]
    return (*full, Line(checkpoint, "128,64", length))


@dataclass
class Found:
    """Of one line, by seed: the share of labels found of each set, in %, and minutes; and what a step costs."""

    line: Line
    accuracy: dict[str, list[float]] = field(default_factory=dict)
    minutes: list[float] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    ms: float | None = None
    mib: float | None = None


def report(wish: Wish[Line], *, console: Console) -> list[Found]:
    """Train what is missing, and write the table; it is written anew after every run."""
    todo = wish.undone_on_one_set()
    wish.out.mkdir(parents=True, exist_ok=True)
    failed = train_all(wish, todo, lambda: write(wish), console)
    time_steps(wish, wish.lines if wish.train else (), console)
    found = [f for f in write(wish) if f.line in wish.lines]
    tell(markdown(found), wish.written(file_of(wish)), console)
    check_trained(failed, todo)
    return found


def found_of(line: Line, wish: Wish[Line]) -> Found:
    """With all seeds that were ever evaluated."""
    found = Found(line)
    if step := timed(wish).get(line.name):
        found.ms, found.mib = step["ms"], step["mib"]
    for run, facts in wish.evaluated(line):
        for name in SETS:
            found.accuracy.setdefault(name, []).append(100 * facts["accuracy"][name])
        found.minutes.append(wish.minutes(run))
        found.devices.append(facts["device"])
    return found


def write(wish: Wish[Line]) -> list[Found]:
    """All of the table, whatever part of it is worked on."""
    found = [found_of(line, wish) for line in wish.table]
    facts = [asdict(f) | {"line": f.line.name, "checkpoint": f.line.checkpoint} for f in found]
    wish.write(file_of(wish), facts, markdown(found))
    return found


def file_of(wish: Wish[Line]) -> str:
    """Each checkpoint has a table of its own."""
    return f"imdb.{label_of(wish.table[0].checkpoint)}"


def markdown(found: Sequence[Found]) -> str:
    return f"{table(COLUMNS, map(row, found))}\n\n{NOTE}"


def row(f: Found) -> tuple[str, ...]:
    return (
        label_of(f.line.checkpoint),
        f.line.title,
        f"{f.line.length:,}",
        *(spread(f.accuracy.get(name, [])) for name in SETS),
        "" if f.ms is None else f"{f.ms:.1f}",
        "" if f.mib is None else f"{f.mib:,.0f}",
        f"{statistics.mean(f.minutes):.1f}" if f.minutes else "",
        ", ".join(dict.fromkeys(f.devices)),
    )
