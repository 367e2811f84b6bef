"""What a run tells: a line that moves on a terminal, lines elsewhere, log.jsonl, and TensorBoard's files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from longshort.lab.runs.checkpoints import write_whole
from longshort.lab.runs.errors import writing

LOG = "log.jsonl"
PATIENCE = 60.0  # seconds without a line, where there is no bar


class Log:
    """Of the first process; the others are given one that is quiet. step: where the run goes on; owes: with an
    evaluation of that step."""

    def __init__(
        self, folder: Path, name: str, steps: int, *, step: int, owes: bool, quiet: bool, console: Console
    ) -> None:
        self.folder, self.steps, self.quiet, self.console = folder, steps, quiet, console
        self.began, self.first = time.monotonic(), step
        self.told_at = self.began
        self.writer: Any = None
        self.bar: Progress | None = None
        if quiet:
            return
        with writing(folder):
            forget_after(folder / LOG, step, owes)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            console.print("tensorboard is not installed: curves go to log.jsonl alone")
        else:
            with writing(folder):
                self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        if console.is_terminal:
            far = "step {task.completed:,.0f} of {task.total:,.0f}  {task.fields[told]}"
            text = TextColumn("{task.description}", markup=False), TextColumn(far, markup=False)
            self.bar = Progress(text[0], BarColumn(bar_width=20), text[1], TimeRemainingColumn(), console=console)
            self.line = self.bar.add_task(name, total=steps, completed=step, told="starting")
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

    def progress(self, step: int, told: str) -> None:
        """Show how far the run is."""
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.update(self.line, completed=step, told=told)
            return
        self.told_at = time.monotonic()
        left = (self.told_at - self.began) / max(step - self.first, 1) * (self.steps - step)
        parts = [f"step {step:,} of {self.steps:,}", *([told] if told else []), f"{clock(left)} left"]
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def move(self, step: int) -> None:
        """Between two lines of the log, of which on a slow machine the first may take long to come."""
        if self.bar is not None:
            self.bar.update(self.line, completed=step)
        elif not self.quiet and time.monotonic() - self.told_at > PATIENCE:
            self.progress(step, "")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say on a terminal what else takes time, for as long as it does."""
        if self.bar is None:
            yield
            return
        told = self.bar.tasks[self.line].fields["told"]
        self.bar.update(self.line, told=f"{told}  {what}")
        try:
            yield
        finally:
            self.bar.update(self.line, told=told)

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
    """All that was noted of a run, in order; a line that a kill cut off is left out."""
    path = folder / LOG
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def forget_after(path: Path, step: int, owes: bool) -> None:
    """What a killed run noted after its last checkpoint will be noted again, and so will an evaluation it owes."""

    def again(line: dict[str, float]) -> bool:
        return line["step"] > step or (owes and line["step"] == step and "loss" not in line)

    kept = [line for line in read_log(path.parent) if not again(line)]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
