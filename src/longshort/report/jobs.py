"""Runs trained and judged one after the other, or several at a time, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from longshort.judge import judge_run
from longshort.train import Run, StoppedError, TrainingError, train

Judged = dict[str, Any]  # what judged.json has


def trained(
    runs: Sequence[Run], out: Path, *, jobs: int, cpu: bool, console: Console
) -> Iterator[tuple[Run, Judged | Exception]]:
    """Each run, as it is finished or fails; `jobs` at a time share one GPU."""
    if jobs == 1:
        for run in runs:
            yield run, outcome(partial(train_and_judge, run, out, cpu, console))
        return
    console.print(f"{len(runs)} runs, {jobs} at a time", highlight=False)
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    waiting = iter(runs)
    futures: dict[Future[Judged], Run] = {}
    try:
        while True:  # no more than can begin at once: what the pool was given, it does even after Ctrl-C
            for run in islice(waiting, jobs - len(futures)):
                futures[pool.submit(train_and_judge, run, out, cpu)] = run
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
    run = deepcopy(run)  # the data goes with it; the caller's run stays without
    if console is not None:
        train(run, out, resume=True, cpu=cpu, console=console)
        return judge_run(out / run.name, cpu=cpu)
    (out / run.name).mkdir(parents=True, exist_ok=True)
    with (out / run.name / "output.txt").open("a") as told:  # several at once would talk at the same time
        train(run, out, resume=True, cpu=cpu, console=Console(file=told))
        return judge_run(out / run.name, cpu=cpu)
