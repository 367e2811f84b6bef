"""What a run tells: a line that moves on a terminal, lines elsewhere, log.jsonl, and a writer of curves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from longshort.lab.runs.errors import writing
from longshort.lab.runs.files import write_whole
from longshort.serial import UNREADABLE, fits

LOG = "log.jsonl"
PATIENCE = 60.0  # seconds without a line, where there is no bar


class Writer(Protocol):
    """Of curves, such as TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...

    def flush(self) -> Any: ...

    def close(self) -> Any: ...


class Log:
    """Of the first process; the others are given one that is quiet.

    step: where the run goes on; evaluation_due: whether it begins with the evaluation of that step. writer: None, or
    what opens a writer in this folder for the steps after `step`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        steps: int,
        *,
        step: int,
        evaluation_due: bool,
        quiet: bool,
        console: Console,
        writer: Callable[[Path, int], Writer | None] | None = None,
    ) -> None:
        self.folder, self.steps, self.quiet, self.console = folder, steps, quiet, console
        self.began, self.first = time.monotonic(), step
        self.shown_at = self.began
        self.writer: Writer | None = None
        self.bar: Progress | None = None
        if quiet:
            return
        with writing(folder):
            forget_after(folder / LOG, step, evaluation_due)
        if writer is not None:
            with writing(folder):
                self.writer = writer(folder, step)
            if self.writer is None:
                console.print("tensorboard is not installed: curves go to log.jsonl alone")
        if console.is_terminal:
            far = "step {task.completed:,.0f} of {task.total:,.0f}  {task.fields[status]}"
            text = TextColumn("{task.description}", markup=False), TextColumn(far, markup=False)
            self.bar = Progress(text[0], BarColumn(bar_width=20), text[1], TimeRemainingColumn(), console=console)
            self.line = self.bar.add_task(name, total=steps, completed=step, status="starting")
            self.bar.start()

    def numbers(self, step: int, **numbers: float) -> None:
        """Note the numbers of a step, for good."""
        if self.quiet:
            return
        with writing(self.folder):
            with (self.folder / LOG).open("a") as f:
                f.write(json.dumps({"step": step, **numbers}) + "\n")
            if self.writer is not None:
                for name, number in numbers.items():
                    self.writer.add_scalar(name, number, step)
                self.writer.flush()  # what is left in memory, a kill would take

    def progress(self, step: int, status: str) -> None:
        """Show how far the run is."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.update(self.line, completed=step, status=status)
            return
        self.shown_at = time.monotonic()
        left = (self.shown_at - self.began) / max(step - self.first, 1) * (self.steps - step)
        parts = [f"step {step:,} of {self.steps:,}", *([status] if status else []), f"{clock(left)} left"]
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def move(self, step: int) -> None:
        """Between two lines of the log, of which on a slow machine the first may take long to come."""
        if self.bar is not None:
            self.bar.update(self.line, completed=step)
        elif not self.quiet and time.monotonic() - self.shown_at > PATIENCE:
            self.progress(step, "")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say on a terminal what else takes time, for as long as it does."""
        if self.bar is None:
            yield
            return
        status = self.bar.tasks[self.line].fields["status"]
        self.bar.update(self.line, status=f"{status}  {what}")
        try:
            yield
        finally:
            self.bar.update(self.line, status=status)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.writer is not None:
            with writing(self.folder):
                self.writer.close()


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def read_log(folder: Path) -> list[dict[str, float]]:
    """All that was noted of a run, in order; a last line that a kill cut off is left out."""
    path = folder / LOG
    lines = path.read_bytes().splitlines() if path.exists() else []
    log = []
    for number, line in enumerate(lines, 1):
        try:
            noted = json.loads(line)
            if not fits(noted["step"], int) or not fits(noted, dict[str, float]):
                raise ValueError("not all of it are numbers")
        except UNREADABLE:
            if number == len(lines):
                break
            raise ValueError(f"{path} is no log of a run: line {number} cannot be read") from None
        log.append(noted)
    return log


def forget_after(path: Path, step: int, evaluation_due: bool) -> None:
    """What a killed run noted after its last checkpoint will be noted again, and so will an evaluation that is due."""

    def again(line: dict[str, float]) -> bool:
        return line["step"] > step or (evaluation_due and line["step"] == step and "loss" not in line)

    lines = [line for line in read_log(path.parent) if not again(line)]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
