"""`longshort report lra`: train every line of the Long Range Arena tables, judge it, and write the tables.

What was done is not done again: each run has its folder, goes on from its last checkpoint, and keeps what was found.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from longshort.bench.lra import macs_of
from longshort.bench.report import machine_line
from longshort.bench.run import write_json
from longshort.bench.step import milliseconds_a_step
from longshort.data.aan import Aan
from longshort.data.overlap import weighted_overlap, word_overlap
from longshort.judge import JUDGED, judge_run
from longshort.recipes.lra_table import LINES, RETRIEVAL, Line
from longshort.recipes.options import adjusted
from longshort.tasks import PairClassification
from longshort.train import Run, TrainingError, train
from longshort.train.checkpoint import write_whole
from longshort.train.errors import StoppedError

NOT_RUN = "not yet run"
Judged = dict[str, Any]  # what judged.json has


@dataclass(frozen=True)
class Wish:
    """What of the tables is wanted, and how. steps: fewer than the recipe's, to try things out."""

    lines: Sequence[Line] = LINES
    out: Path = Path("out/lra")
    data: Path | None = None
    seeds: int | None = None
    steps: int | None = None
    jobs: int = 1
    train: bool = True
    cpu: bool = False

    def runs(self, line: Line) -> list[Run]:
        seeds = line.seeds if self.seeds is None else self.seeds
        return [adjusted(line.run(seed, self.data), steps=self.steps) for seed in range(seeds)]


@dataclass
class Found:
    """Of one line: what its runs found, by seed; and what was measured of it."""

    line: Line
    accuracy: dict[str, list[float]] = field(default_factory=dict)  # of each test set, in %
    steps: int | None = None
    macs: float | None = None  # in G
    ms: float | None = None
    missing: str = ""
    about: str = ""  # the data, where its name is not told by the task


def report(wish: Wish, *, console: Console) -> list[Found]:
    """Train what is missing, and write the tables; they are written anew after every run."""
    if wish.data is not None and not wish.data.is_dir():
        raise FileNotFoundError(f"data must be a folder with the data sets, and {wish.data} is none")
    wish.out.mkdir(parents=True, exist_ok=True)
    missing = data_missing(wish) if wish.train else {}  # to know, it is all read, and what can be is generated
    for name, reason in missing.items():
        console.print(f"{name}: {reason}", highlight=False, soft_wrap=True)
    possible = [line for line in wish.lines if line.task.name not in missing]
    todo = [run for line in possible if wish.train for run in wish.runs(line) if not done(run, wish.out)]
    if wish.train and any(line.task == RETRIEVAL for line in possible):
        measure_overlap(wish)
    write(wish, missing)  # what this lacks, such as a package, shows before the work
    failed = []
    for run, facts in trained(todo, wish, console):
        if isinstance(facts, Exception):
            failed.append(f"{run.name}: {facts}")
            console.print(f"failed: {failed[-1]}", highlight=False, markup=False, soft_wrap=True)
            continue
        console.print(f"{run.name}: {100 * facts['accuracy']['test']:.2f} % on the test set", highlight=False)
        write(wish, missing)
    if wish.train:
        time_steps(wish, possible, console)
    found = write(wish, missing)
    console.print(markdown(found), highlight=False, markup=False, soft_wrap=True)
    console.print(f"written to {wish.out / 'lra.md'} and lra.json", highlight=False, soft_wrap=True)
    if failed:
        raise TrainingError(f"{len(failed)} of {len(todo)} runs failed; {'; '.join(failed)}")
    return found


def data_missing(wish: Wish) -> dict[str, str]:
    """The tasks whose data is not there, and what their readers say of it."""
    missing: dict[str, str] = {}
    for task, line in {line.task.name: line for line in wish.lines}.items():
        try:
            line.run(0, wish.data).task.fingerprint()
        except FileNotFoundError as error:
            missing[task] = str(error)
    return missing


def measure_overlap(wish: Wish) -> None:
    """How far words alone tell the pairs of Retrieval apart: what a model's accuracy is to be seen beside."""
    path = wish.out / "overlap.json"
    task = Line(RETRIEVAL, "8,32").run(0, wish.data).task
    assert isinstance(task, PairClassification) and isinstance(task.source, Aan)
    if not path.exists():
        found = {"words": word_overlap(task.splits), "rare words": weighted_overlap(task.splits)}
        write_json({"data": task.source.name, "accuracy": found}, path)


def about_data(line: Line, wish: Wish) -> str:
    path = wish.out / "overlap.json"
    if line.task != RETRIEVAL or not path.exists():
        return ""
    facts = json.loads(path.read_text())
    words, rare = (100 * facts["accuracy"][name] for name in ("words", "rare words"))
    return (
        f"Ours are of the {facts['data']}, on whose test pairs the words in common alone reach {words:.1f} %, and with "
        f"rare words counting for more {rare:.1f} %."
    )


def done(run: Run, out: Path) -> bool:
    """Whether it was judged, after as many steps as are wanted now."""
    judged, record = out / run.name / JUDGED, out / run.name / "run.json"
    return judged.exists() and record.exists() and json.loads(record.read_text())["steps"] == run.steps


def trained(runs: Sequence[Run], wish: Wish, console: Console) -> Iterator[tuple[Run, Judged | Exception]]:
    """Each run, as it is finished or fails; `jobs` at a time, each in a process of its own, share one GPU."""
    if wish.jobs == 1:
        for run in runs:
            yield run, outcome(partial(train_and_judge, run, wish.out, wish.cpu, console))
        return
    console.print(f"{len(runs)} runs, {wish.jobs} at a time", highlight=False)
    pool = ProcessPoolExecutor(wish.jobs, mp_context=get_context("spawn"))
    waiting = iter(runs)
    futures: dict[Future[Judged], Run] = {}
    try:
        while True:  # no more than can begin at once: what the pool was given, it does even after Ctrl-C
            for run in islice(waiting, wish.jobs - len(futures)):
                futures[pool.submit(train_and_judge, run, wish.out, wish.cpu)] = run
            if not futures:
                break
            future = next(iter(wait(futures, return_when=FIRST_COMPLETED).done))
            yield futures.pop(future), outcome(future.result)
    except KeyboardInterrupt:  # which the others were sent as well
        raise StoppedError("stopped; what was trained is saved") from None
    except BrokenProcessPool:
        raise TrainingError(
            "a run was killed from outside, for want of memory perhaps; what was trained is saved. "
            "The same command goes on from there; fewer --jobs need less"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def outcome(act: Callable[[], Judged]) -> Judged | Exception:
    """One run that diverges, or does not fit into memory, leaves the others be; a wish to stop is for all."""
    try:
        return act()
    except (StoppedError, BrokenProcessPool):  # of a broken pool nothing more comes
        raise
    except (TrainingError, RuntimeError, OSError) as error:
        return error


def train_and_judge(run: Run, out: Path, cpu: bool, console: Console | None = None) -> Judged:
    run = deepcopy(run)  # a task keeps its data: so it goes when this is done, and the caller's run stays small
    (out / run.name / JUDGED).unlink(missing_ok=True)  # of fewer steps
    if console is not None:
        train(run, out, resume=True, cpu=cpu, console=console)
        return judge_run(out / run.name, cpu=cpu)
    (out / run.name).mkdir(parents=True, exist_ok=True)
    with (out / run.name / "output.txt").open("a") as told:  # several at once would talk at the same time
        train(run, out, resume=True, cpu=cpu, console=Console(file=told))
        return judge_run(out / run.name, cpu=cpu)


def time_steps(wish: Wish, lines: Sequence[Line], console: Console) -> None:
    """Of each line whose step was not timed before; on a GPU, with nothing beside it."""
    if wish.cpu or not torch.cuda.is_available():
        return
    known = timed(wish)
    for line in lines:
        runs = wish.runs(line)
        if line.name in known or not runs:
            continue
        console.print(f"timing a step: {line.name}", highlight=False)
        known[line.name] = milliseconds_a_step(runs[0])
        write_json({"machine": machine_line(torch.device("cuda")), "ms": known}, wish.out / "steps.json")


def timed(wish: Wish) -> dict[str, float]:
    path = wish.out / "steps.json"
    known: dict[str, float] = json.loads(path.read_text())["ms"] if path.exists() else {}
    return known


def found_of(line: Line, wish: Wish, missing: dict[str, str]) -> Found:
    found = Found(line, missing=missing.get(line.task.name, ""), ms=timed(wish).get(line.name))
    found.about = about_data(line, wish)
    for run in wish.runs(line):
        if not done(run, wish.out):
            continue
        facts = json.loads((wish.out / run.name / JUDGED).read_text())
        found.steps = run.steps
        for name, share in facts["accuracy"].items():
            found.accuracy.setdefault(name, []).append(100 * share)
    found.macs = None if line.macs is None else known_macs(line)
    return found


@cache
def known_macs(line: Line) -> float:
    return macs_of(line)


def write(wish: Wish, missing: dict[str, str]) -> list[Found]:
    found = [found_of(line, wish, missing) for line in wish.lines]
    facts = [{**asdict(f), "line": f.line.name, "paper": f.line.paper, "paper_macs": f.line.macs} for f in found]
    write_json({"lines": facts}, wish.out / "lra.json")
    write_whole(wish.out / "lra.md", (markdown(found) + "\n").encode())
    return found


def markdown(found: Sequence[Found]) -> str:
    """A table for each task, and the paper's Table 2."""
    tasks = list(dict.fromkeys(f.line.task for f in found))
    parts = []
    for task in tasks:
        lines = [f for f in found if f.line.task == task]
        rows = [
            f"| {f.line.attention} | {number(f.line.paper, f.line.deviation)} | {ours(f, 'test')} | "
            f"{number(f.line.macs)} | {number(f.macs)} | {number(f.ms)} |"
            for f in lines
        ]
        head = "| attention | paper, % | ours, % | paper, GMACs | ours, GMACs | ms a step |\n|---|---|---|---|---|---|"
        notes = [text for text in (task.note, lines[0].about, lines[0].missing) if text]
        parts.append("\n\n".join([f"### {task.title}", "\n".join([head, *rows]), *notes]))
    perturbed = [f for f in found if f.line.insertion is not None]
    if perturbed:
        rows = [
            f"| {f.line.attention} | {f.line.paper} / {f.line.insertion} / {f.line.deletion} | "
            f"{' / '.join(ours(f, name, short=True) for name in ('test', 'insertion', 'deletion'))} |"
            for f in perturbed
        ]
        head = "| attention | paper, %: none / insertion / deletion | ours, % |\n|---|---|---|"
        parts.append(f"### Text, test-time insertion and deletion (Table 2)\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(parts)


def ours(found: Found, test: str, *, short: bool = False) -> str:
    """Mean ± standard deviation over seeds."""
    values = found.accuracy.get(test, [])
    if not values:
        return NOT_RUN
    mean = f"{statistics.mean(values):.2f}"
    if short:
        return mean
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean}{spread} ({len(values)} {'seed' if len(values) == 1 else 'seeds'})"


def number(value: float | None, deviation: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if deviation is None else f"{value:.2f} ± {deviation}"
