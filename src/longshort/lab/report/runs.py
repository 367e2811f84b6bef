"""What all reports have in common: lines of a table, each with its runs, which are trained, evaluated and timed once.

What was done is not done again: each run has its folder, goes on from its last checkpoint, and keeps what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from rich.console import Console

from longshort.lab.bench.report import machine_line
from longshort.lab.bench.step import measured_step
from longshort.lab.recipes.options import adjusted
from longshort.lab.report.jobs import Evaluated, trained
from longshort.lab.runs.files import write_json, write_whole
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.run import differences
from longshort.lab.train import Run, TrainingError
from longshort.serial import as_json, read_object

SEEDS = 32  # of which results are looked for
NO_MATTER = ("log_every", "save_every", "compile", "graph")  # to what was found


class Line(Protocol):
    """Of a table. seeds: how many are trained unless told otherwise."""

    @property
    def name(self) -> str: ...

    @property
    def seeds(self) -> int: ...

    def run(self, seed: int, data: Path | None = None) -> Run: ...


L = TypeVar("L", bound=Line)


@dataclass(frozen=True)
class Wish(Generic[L]):
    """What of a table is wanted, and how. table: all lines that are written; lines: those to be trained.

    steps: other than the recipe's, to try things out; such runs and tables have names of their own.
    """

    table: Sequence[L]
    lines: Sequence[L]
    out: Path
    data: Path | None = None
    seeds: int | None = None
    steps: int | None = None
    jobs: int = 1
    train: bool = True
    cpu: bool = False

    def run(self, line: L, seed: int) -> Run:
        run = line.run(seed, self.data)
        return run if self.steps is None else short(run, self.steps)

    def runs(self, line: L) -> list[Run]:
        return [self.run(line, seed) for seed in range(line.seeds if self.seeds is None else self.seeds)]

    def undone(self, line: L, data: str) -> list[Run]:
        """The runs of a line that are to be trained yet, on data of this fingerprint."""
        return [run for run in self.runs(line) if not done(run, RunFolder(self.out / run.name), data)]

    def undone_on_one_set(self) -> list[Run]:
        """Of all lines that are to be trained, where these share their data, which is read for that."""
        if not self.train:
            return []
        data = self.lines[0].run(0, self.data).task.fingerprint()
        return [run for line in self.lines for run in self.undone(line, data)]

    def file(self, name: str, ending: str) -> Path:
        return self.out / f"{name}{'' if self.steps is None else f'.{self.steps}steps'}.{ending}"

    def write(self, name: str, facts: Sequence[Mapping[str, Any]], text: str) -> None:
        """What was found of each line of the table, and the table itself."""
        write_json(self.file(name, "json"), {"lines": facts})
        write_whole(self.file(name, "md"), f"{text}\n".encode())

    def written(self, name: str) -> str:
        return f"written to {self.file(name, 'md')} and {self.file(name, 'json').name}"

    def evaluated(self, line: L) -> Iterator[tuple[Run, Evaluated]]:
        """All runs of a line that were ever done, and what was found."""
        for run in (self.run(line, seed) for seed in range(SEEDS)):
            folder = RunFolder(self.out / run.name)
            if done(run, folder) and folder.evaluated is not None:
                yield run, folder.evaluated

    def minutes(self, run: Run) -> float:
        """Of all training, with its evaluations."""
        seconds: float = RunFolder(self.out / run.name).result["seconds"]
        return seconds / 60


def short(run: Run, steps: int) -> Run:
    before = None if run.starts_from is None else short(run.starts_from, steps)
    return replace(adjusted(run, steps=steps), name=f"{run.name}.{steps}steps", starts_from=before)


def done(run: Run, folder: RunFolder, data: str | None = None) -> bool:
    """Whether this run, on this data where it is known, was trained to the end and evaluated."""
    facts = folder.evaluated
    if facts is None or not folder.record.exists():
        return False
    if None not in (facts.get("data"), data) and facts["data"] != data:
        raise TrainingError(f"{folder.path} was trained on other data than there is now: give another --out")
    return not differences(as_json(folder.run), as_json(run), but=NO_MATTER)


def train_all(wish: Wish[L], runs: Sequence[Run], write: Callable[[], Any], console: Console) -> list[str]:
    """Train and evaluate these, and `write` the table anew after each; which of them failed, and why."""
    failed = []
    for run, facts in trained(runs, wish.out, jobs=wish.jobs, cpu=wish.cpu, console=console):
        if isinstance(facts, Exception):
            failed.append(f"{run.name}: {facts}")
            console.print(f"failed: {failed[-1]}", highlight=False, markup=False, soft_wrap=True)
            continue
        name, share = next(iter(facts["accuracy"].items()))
        console.print(f"{run.name}: {100 * share:.2f} % on the {name} set", highlight=False)
        write()
    return failed


def check_trained(failed: Sequence[str], runs: Sequence[Run]) -> None:
    """Once the table is written, say which of these are not in it."""
    if failed:
        raise TrainingError(f"{len(failed)} of {len(runs)} runs failed; {'; '.join(failed)}")


def tell(text: str, written: str, console: Console) -> None:
    """The table, and where it was written."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print(written, highlight=False, soft_wrap=True)


def time_steps(wish: Wish[L], lines: Sequence[L], console: Console) -> None:
    """Of each line whose step was not timed before; on a GPU, with nothing beside it."""
    if wish.cpu or wish.steps is not None or not torch.cuda.is_available():
        return
    known = timed(wish)
    machine = machine_line(torch.device("cuda"))
    for line in lines:
        runs = wish.runs(line)
        if line.name in known or not runs:
            continue
        console.print(f"timing a step: {line.name}", highlight=False)
        try:
            step = measured_step(runs[0])
        except RuntimeError as error:  # such as no memory
            console.print(f"not timed: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        known[line.name] = {**asdict(step), "machine": machine}
        write_json(wish.out / "steps.json", known)


def timed(wish: Wish[L]) -> dict[str, dict[str, Any]]:
    """By the names of lines: ms, mib (not in files of earlier versions), machine."""
    path = wish.out / "steps.json"
    return read_object(path, "file of step times") if path.exists() else {}
