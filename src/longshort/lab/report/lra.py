"""`longshort report lra`: train lines of the Long Range Arena tables, evaluate them, and write the tables."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cache
from typing import Any

from rich.console import Console

from longshort.lab.bench.lra import macs_of
from longshort.lab.data.overlap import weighted_overlap, word_overlap
from longshort.lab.recipes.lra_table import LINES, RETRIEVAL, Line
from longshort.lab.report.runs import Wish, check_trained, tell, time_steps, timed, train_all
from longshort.lab.report.table import Found, markdown
from longshort.lab.runs.files import write_json
from longshort.lab.train import TrainingError
from longshort.serial import read_object

__all__ = ["LINES", "report"]


def report(wish: Wish[Line], *, console: Console) -> list[Found]:
    """Train what is missing, and write the tables; they are written anew after every run. What was found of the lines
    that were wished for."""
    if wish.data is not None and not wish.data.is_dir():
        raise FileNotFoundError(f"data must be a folder with the data sets, and {wish.data} is none")
    wish.out.mkdir(parents=True, exist_ok=True)
    data = Data(wish)
    if wish.train:
        data.read(console)
    possible = [line for line in wish.lines if wish.train and line.task.name not in data.missing]
    todo = [run for line in possible for run in wish.undone(line, data.prints[line.task.name])]
    write(wish, data)  # what this lacks, such as a package, shows before the work
    failed = train_all(wish, todo, lambda: write(wish, data), console)
    time_steps(wish, possible, console)
    found = [f for f in write(wish, data) if f.line in wish.lines]
    tell(markdown(found), wish.written("lra"), console)
    if any(not wish.runs(line) for line in possible):
        console.print("lines that are there for comparison alone are trained with --seeds N", highlight=False)
    check_trained(failed, todo)
    if data.missing:
        places = {line.task.name: line.task.folder for line in wish.lines if line.task.name in data.missing}
        wanted = ", ".join(f"{task} (FOLDER/{place} with --data FOLDER)" for task, place in places.items())
        raise TrainingError(f"not run, since their data cannot be had, see above: {wanted}")
    return found


class Data:
    """The data sets of the tasks wished for, once they were read: their fingerprints, or why one cannot be had."""

    def __init__(self, wish: Wish[Line]) -> None:
        self.wish = wish
        self.prints: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def read(self, console: Console) -> None:
        for line in {line.task.name: line for line in self.wish.lines}.values():
            task = line.run(0, self.wish.data).task
            if self.wish.data is not None and not (here := self.wish.data / line.task.folder).exists():
                said = f"{line.task.name}: {here} is not there; its data is what it is without --data"
                console.print(said, highlight=False, soft_wrap=True)
            try:
                self.prints[line.task.name] = task.fingerprint()
            except (OSError, ValueError, ImportError) as error:
                self.missing[line.task.name] = str(error)
                console.print(f"{line.task.name}: {error}", highlight=False, soft_wrap=True)
                continue
            if line.task == RETRIEVAL:
                self.measure_overlap(task)

    def measure_overlap(self, task: Any) -> None:
        """How far words alone tell the pairs of Retrieval apart: what a model's accuracy is to be seen beside."""
        path = self.wish.out / "overlap.json"
        if path.exists() and read_object(path, "measure of overlap", data=str)["data"] == task.fingerprint():
            return
        found = {"words": word_overlap(task.splits), "rare words": weighted_overlap(task.splits)}
        write_json(path, {"data": task.fingerprint(), "name": task.source.name, "accuracy": found})

    def about(self, line: Line) -> str:
        path = self.wish.out / "overlap.json"
        if line.task != RETRIEVAL or not path.exists():
            return ""
        facts = read_object(path, "measure of overlap", name=str, accuracy=dict[str, float])
        words, rare = (100 * facts["accuracy"].get(name, math.nan) for name in ("words", "rare words"))
        return (
            f"Ours are of the {facts['name']}, on whose test pairs the words in common alone reach {words:.1f} %, and "
            f"with rare words counting for more {rare:.1f} %."
        )


def found_of(line: Line, wish: Wish[Line], data: Data) -> Found:
    """With all seeds that were ever evaluated."""
    found = Found(line, missing=data.missing.get(line.task.name, ""), about=data.about(line))
    found.macs = None if line.macs is None else known_macs(line)
    if step := timed(wish).get(line.name):
        found.ms, found.machine = float(step["ms"]), str(step["machine"])
    for _, facts in wish.evaluated(line):
        for name, share in facts["accuracy"].items():
            found.accuracy.setdefault(name, []).append(100 * share)
    return found


@cache
def known_macs(line: Line) -> float:
    return macs_of(line)


def write(wish: Wish[Line], data: Data) -> list[Found]:
    """All of the table, whatever part of it is worked on."""
    found = [found_of(line, wish, data) for line in wish.table]
    facts = [{**asdict(f), "line": f.line.name, "paper": f.line.paper, "paper_macs": f.line.macs} for f in found]
    wish.write("lra", facts, markdown(found))
    return found
