"""The folder of one run: its files, and its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from longshort.checksums import CHECKPOINTS, RECORD, run_folder
from longshort.lab.runs.checkpoints import Checkpoints, read_facts
from longshort.lab.runs.errors import TrainingError, writing
from longshort.lab.runs.files import remove_unfinished, write_json
from longshort.lab.runs.lock import LOCK, folder_lock
from longshort.lab.runs.log import read_log
from longshort.lab.runs.run import Run, differences
from longshort.serial import (
    UnregisteredError,
    as_json,
    from_json,
    read,
    read_json,
    read_object,
    reading,
    with_current_names,
)

RESULT, EVALUATED = "result.json", "evaluated.json"
FORMER_EVALUATED = "judged.json"
RECORD_KIND = "record of a run"
# Settings that --resume may change. Processes and accumulate are checked with the checkpoint.
MAY_CHANGE = ("steps", "schedule.warmup", "log_every", "evaluate_every", "save_every", "compile", "graph", "accumulate")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / RECORD
        self.checkpoints = Checkpoints(path / CHECKPOINTS)

    @classmethod
    def of_checkpoint(cls, path: Path) -> RunFolder | None:
        """The folder of the run that wrote this checkpoint; None of other folders."""
        folder = run_folder(path)
        return None if folder is None else cls(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process trains in this folder. Folders that are made for it and stay empty are removed."""
        new = [each for each in (self.path, *self.path.parents) if not each.exists()]
        with ExitStack() as stack:
            try:
                with writing(self.path):
                    stack.enter_context(folder_lock(self.path, wait=False))
            except BlockingIOError:
                raise TrainingError(
                    f"another process is training in {self.path}: wait until it has ended, or give another --out"
                ) from None
            try:
                yield
            finally:
                with suppress(OSError):
                    if new:
                        (self.path / LOCK).unlink(missing_ok=True)
                    for each in new:
                        each.rmdir()

    @cached_property
    def recorded(self) -> Any:
        """The content of run.json, parsed once."""
        return read_json(self.record, RECORD_KIND)

    @cached_property
    def run(self) -> Run:
        """Raises UnregisteredError where the task, say, is of a class of the user's own that was not imported."""
        recorded = self.recorded
        with reading(self.record, RECORD_KIND):
            run: Run = from_json(recorded, Run)
            return run

    def with_recorded_length(self, run: Run) -> Run:
        """The run with the steps and the warm-up that the folder records, if it records a run."""
        if not self.record.exists():
            return run
        schedule = replace(run.schedule, warmup=self.run.schedule.warmup)
        return replace(run, steps=self.run.steps, schedule=schedule)

    def start(self, run: Run, *, resume: bool, say: Callable[[str], None]) -> Path | None:
        """The checkpoint that a training goes on from. A folder with one is refused without `resume`, and so are
        other settings than it began with, and a run whose record could not be read back."""
        try:
            from_json(as_json(run), Run)
        except UnregisteredError as error:
            say(f"{run.name} can be trained, but not opened later: {error}")
        last = self.checkpoints.last()
        if last is None:
            return None
        if not resume:
            raise TrainingError(f"{self.path} holds a run already: go on with --resume, or give another --out")
        began = self.settings()
        if began.get("steps") != run.steps:
            say(f"{run.name}: {began.get('steps')} steps before, {run.steps} now")
        changed = differences(began, as_json(run), but=MAY_CHANGE)
        if changed:
            raise TrainingError(
                f"{self.path} was begun with other settings: {'; '.join(changed)}. "
                "Resume with those it has, or give another --out."
            )
        read_log(self.path)  # refuses a damaged log before anything is written
        return last

    def settings(self) -> dict[str, Any]:
        """What the folder records, as JSON. The task may be of a class of the user's own, which is not read."""
        if not self.record.exists():
            raise TrainingError(
                f"{self.record} is not there, so nobody knows which settings the checkpoints beside it belong to: "
                "restore it, or give another --out"
            )
        try:
            return dict(as_json(self.run))  # with fields that are newer than the record
        except UnregisteredError:
            return dict(with_current_names(self.recorded))

    def prepare(self, run: Run) -> None:
        """Fails now rather than at the first checkpoint."""
        with writing(self.path):
            self.checkpoints.folder.mkdir(parents=True, exist_ok=True)
            self.checkpoints.tidy()
            remove_unfinished(self.path)
        with writing(self.path):
            write_json(self.record, as_json(run))

    def write_result(self, facts: dict[str, Any]) -> None:
        with writing(self.path):
            write_json(self.path / RESULT, facts)

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_object(self.path / RESULT, "result of a run", seconds=float)

    def write_evaluated(
        self, run: Run, checkpoint: Path, accuracy: Mapping[str, float], *, data: str, precision: str, device: str
    ) -> dict[str, Any]:
        """Keep the shares of labels found, by set, and what they were found with."""
        noted = read_facts(checkpoint)
        facts = {
            "run": run.name,
            "checkpoint": noted["step"],
            "dev": noted["metrics"].get("accuracy"),
            "accuracy": dict(accuracy),
            "source": run.task.source.name,
            "data": data,
            "precision": precision,
            "device": device,
        }
        with writing(self.path):
            write_json(self.path / EVALUATED, facts)
        return facts

    @cached_property
    def evaluated(self) -> dict[str, Any] | None:
        """What evaluations of the finished run gave; None before them."""
        for name in (EVALUATED, FORMER_EVALUATED):
            if (self.path / name).exists():
                return read_object(self.path / name, "result of an evaluation", accuracy=dict[str, float], device=str)
        return None


def read_run(path: Path) -> Run:
    """From a file such as a folder's run.json, wherever it lies."""
    return read(path, Run, RECORD_KIND)
