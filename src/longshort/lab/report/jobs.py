"""Runs trained and evaluated one after the other, or several at a time, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from longshort.lab.evaluate import evaluate
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import read_log
from longshort.lab.train import Run, StoppedError, TrainingError, train
from longshort.lab.train.processes import Processes
from longshort.lab.trained import Trained

Evaluated = dict[str, Any]  # what evaluated.json has
LOOK_EVERY = 2.0  # seconds, at runs
TELL_EVERY = 60.0  # where there is no terminal


def trained(
    runs: Sequence[Run], out: Path, *, jobs: int, cpu: bool, console: Console
) -> Iterator[tuple[Run, Evaluated | Exception]]:
    """Each run, as it is finished or fails; `jobs` at a time share one GPU."""
    if jobs == 1:
        for run in runs:
            yield run, outcome(partial(train_and_evaluate, run, out, cpu, console))
        return
    console.print(f"{len(runs)} to train, {jobs} at a time", highlight=False)
    watch = Watch(out, console)
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    waiting = iter(runs)
    futures: dict[Future[Evaluated], Run] = {}
    try:
        while True:  # no more than can begin at once: what the pool was given, it does even after Ctrl-C
            for run in islice(waiting, jobs - len(futures)):
                futures[pool.submit(train_and_evaluate, run, out, cpu)] = run
            if not futures:
                break
            finished = wait(futures, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED).done
            watch.look([run for future, run in futures.items() if future not in finished])
            for future in finished:
                yield futures.pop(future), outcome(future.result)
    except KeyboardInterrupt:  # which the others were sent as well
        raise StoppedError("stopped; what was trained is saved") from None
    except BrokenProcessPool:
        raise TrainingError(
            "a run was killed from outside, for want of memory perhaps; what was trained is saved. "
            "The same command goes on from there; fewer --jobs need less"
        ) from None
    finally:
        watch.close()
        pool.shutdown(cancel_futures=True)


class Watch:
    """Shows how far several runs are: on a terminal a bar for each, elsewhere a line now and then."""

    def __init__(self, out: Path, console: Console) -> None:
        self.out, self.console = out, console
        self.told = time.monotonic()
        self.bars: dict[str, TaskID] = {}
        self.progress: Progress | None = None
        if console.is_terminal:
            text = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[told]}", markup=False)
            self.progress = Progress(text[0], BarColumn(bar_width=20), text[1], console=console, transient=True)
            self.progress.start()

    def look(self, runs: Collection[Run]) -> None:
        """At those under way."""
        if self.progress is None:
            if time.monotonic() - self.told >= TELL_EVERY:
                self.told = time.monotonic()
                far = (f"{run.name} {how_far(run, self.out)[0]}" for run in runs)
                self.console.print(f"under way: {'; '.join(far)}", highlight=False, soft_wrap=True)
            return
        for name in self.bars.keys() - {run.name for run in runs}:
            self.progress.remove_task(self.bars.pop(name))
        for run in runs:
            told, share = how_far(run, self.out)
            if run.name not in self.bars:
                self.bars[run.name] = self.progress.add_task(run.name, total=1.0, told=told)
            self.progress.update(self.bars[run.name], completed=share, told=told)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def how_far(run: Run, out: Path) -> tuple[str, float]:
    """A run and those it starts from, by their logs: in words, and the share of all steps."""
    steps, done, told = sum(each.steps for each in run.chain), 0, "starting"
    for each in run.chain:
        log = read_log(out / each.name)
        if log:
            step = int(log[-1]["step"])
            told = f"step {step:,} of {each.steps:,}"
            done += step
    return told, done / steps


def outcome(act: Callable[[], Evaluated]) -> Evaluated | Exception:
    """One run that diverges, or does not fit into memory, leaves the others be; a wish to stop is for all."""
    try:
        return act()
    except (StoppedError, BrokenProcessPool):  # of a broken pool nothing more comes
        raise
    except (TrainingError, RuntimeError, OSError) as error:
        return error


def train_and_evaluate(run: Run, out: Path, cpu: bool, console: Console | None = None) -> Evaluated:
    run = deepcopy(run)  # the data goes with it; the caller's run stays without
    if console is not None:
        train(run, out, resume=True, cpu=cpu, console=console)
        return evaluate_run(run, out, cpu)
    (out / run.name).mkdir(parents=True, exist_ok=True)
    with (out / run.name / "output.txt").open("a") as told:  # several at once would talk at the same time
        train(run, out, resume=True, cpu=cpu, console=Console(file=told))
        return evaluate_run(run, out, cpu)


def evaluate_run(run: Run, out: Path, cpu: bool) -> Evaluated:
    """On the test set, by the best checkpoint, and keep what comes out in the run's folder. Without a test set on the
    development set, by the last checkpoint: there is nothing else to choose it by."""
    if run.task.metric != "accuracy":
        raise ValueError(f"{run.name} is no run of a classification: what is measured is {run.task.metric}")
    processes = Processes("auto", cpu=cpu)
    evaluators = [*run.task.evaluators("test")]
    trained = Trained.open(str(out / run.name), "best" if evaluators else "last")
    results = evaluate(trained.model(processes.device), evaluators or run.task.evaluators("dev"), processes)
    return RunFolder(out / run.name).write_evaluated(
        run,
        trained.path,
        {name: shares["accuracy"].mean for name, shares in results.items()},
        data=run.task.fingerprint(),
        precision=processes.precision,
        device=torch.cuda.get_device_name() if processes.device.type == "cuda" else "cpu",
    )
