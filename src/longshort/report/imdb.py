"""`longshort report imdb`: a pretrained encoder, converted to long-short attention, on the reviews of IMDb, beside the
original cut short and the original with its positions repeated; trained alike."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from longshort.bench.run import write_json
from longshort.recipes.roberta import imdb, label_of
from longshort.report.runs import Wish, done, time_steps, timed, train_all
from longshort.report.table import spread
from longshort.train import Run, TrainingError
from longshort.train.checkpoint import write_whole

SHORT = 512  # tokens that the originals read
COLUMNS = ("checkpoint", "attention", "tokens", "test set, %", "longest tenth, %", "ms a step", "MiB", "minutes", "on")
NOTE = (
    "The checkpoint that is best on a tenth of the training set is judged. The longest tenth is of the test set, by "
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
    prints = wish.lines[0].run(0, wish.data).task.fingerprint() if wish.train else None
    wish.out.mkdir(parents=True, exist_ok=True)
    todo = [run for line in wish.lines if wish.train for run in wish.runs(line) if not done(run, wish.out, prints)]
    failed = train_all(wish, todo, lambda: write(wish), console)
    time_steps(wish, wish.lines if wish.train else (), console)
    found = [f for f in write(wish) if f.line in wish.lines]
    console.print(markdown(found), highlight=False, markup=False, soft_wrap=True)
    where = f"written to {wish.file(file_of(wish), 'md')} and {wish.file(file_of(wish), 'json').name}"
    console.print(where, highlight=False, soft_wrap=True)
    if failed:
        raise TrainingError(f"{len(failed)} of {len(todo)} runs failed; {'; '.join(failed)}")
    return found


def found_of(line: Line, wish: Wish[Line]) -> Found:
    """With all seeds that were ever judged."""
    found = Found(line)
    if step := timed(wish).get(line.name):
        found.ms, found.mib = step["ms"], step["mib"]
    for run, facts in wish.judged(line):
        for name in SETS:
            found.accuracy.setdefault(name, []).append(100 * facts["accuracy"][name])
        found.minutes.append(json.loads((wish.out / run.name / "result.json").read_text())["seconds"] / 60)
        found.devices.append(facts["device"])
    return found


def write(wish: Wish[Line]) -> list[Found]:
    """All of the table, whatever part of it is worked on."""
    found = [found_of(line, wish) for line in wish.table]
    facts = [asdict(f) | {"line": f.line.name, "checkpoint": f.line.checkpoint} for f in found]
    write_json({"lines": facts}, wish.file(file_of(wish), "json"))
    write_whole(wish.file(file_of(wish), "md"), (markdown(found) + "\n").encode())
    return found


def file_of(wish: Wish[Line]) -> str:
    """Each checkpoint has a table of its own."""
    return f"imdb.{label_of(wish.table[0].checkpoint)}"


def markdown(found: Sequence[Found]) -> str:
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    return "\n".join([*head, *map(row, found), "", NOTE])


def row(f: Found) -> str:
    cells = (
        label_of(f.line.checkpoint),
        f.line.title,
        f"{f.line.length:,}",
        *(spread(f.accuracy.get(name, [])) for name in SETS),
        "" if f.ms is None else f"{f.ms:.1f}",
        "" if f.mib is None else f"{f.mib:,.0f}",
        f"{statistics.mean(f.minutes):.1f}" if f.minutes else "",
        ", ".join(dict.fromkeys(f.devices)),
    )
    return f"| {' | '.join(cells)} |"
