"""The loop of a training, whichever framework computes its steps: when to log, evaluate, save and stop."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from longshort.lab.runs.errors import DivergedError, StoppedError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import Log, Writer, clock
from longshort.lab.runs.run import Run
from longshort.lab.runs.signals import Left, Stop


class Loop(ABC):
    """One run under way, in a folder that is locked for it. A subclass holds model and optimizer.

    first: whether this process is the one that writes. start: the checkpoint that it goes on from.
    """

    advice = "a lower learning rate or a longer warm-up"  # for a run that diverged
    writer: Callable[[Path, int], Writer | None] | None = None  # of curves

    def __init__(self, run: Run, folder: RunFolder, *, resume: bool, console: Console, first: bool = True) -> None:
        self.run, self.folder, self.console, self.first = run, folder, console, first
        self.start = folder.start(run, resume=resume, say=self.say)
        self.data = run.task.fingerprint()
        self.step = 0
        self.last_loss = math.nan
        self.metrics: dict[str, float] = {}
        self.best_step, self.best = 0, math.inf
        self.evaluated = 0  # the step of the last evaluation
        self.seconds = 0.0

    @abstractmethod
    def update(self, rate: float) -> int:
        """Do update number `self.step`, at this share of the peak rate, and count it. Returns how many units it learned
        from."""

    @abstractmethod
    def take_losses(self) -> tuple[float, float]:
        """Sum and count of the losses since it was last called, of all processes."""

    @abstractmethod
    def measure(self, stop: Stop) -> dict[str, float]:
        """The metrics on the development set."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether the losses and all weights are numbers, in all processes."""

    @abstractmethod
    def write(self, facts: dict[str, Any]) -> None:
        """Write a checkpoint with these facts."""

    @abstractmethod
    def read(self, path: Path) -> dict[str, Any]:
        """Restore a checkpoint. Returns its facts."""

    def stopping(self, stop: Stop, logged: bool) -> bool:
        """Whether to stop after this step. logged: whether it has a line in the log."""
        return stop.wanted

    def begin(self) -> None:
        """Go on from the last checkpoint if there is one, and prepare the folder."""
        if self.start is not None:
            facts = self.read(self.start)
            self.step, self.metrics, self.seconds = facts["step"], facts["metrics"], facts["seconds"]
            self.best_step, self.best, self.last_loss = facts["best_step"] or 0, facts["best"], facts["last_loss"]
            self.evaluated = facts["evaluated"]
            unfinished = self.step < self.run.steps or self.evaluation_due
            if unfinished and facts["data"] not in (None, self.data):
                raise TrainingError(
                    f"the data is not what {self.folder.path} had at step {self.step:,}, and a run goes on with what "
                    "it began with. Say where that is (run.json has it), restore it, or give another --out."
                )
            if self.step > self.run.steps:
                raise TrainingError(f"{self.start} is of step {self.step:,}, and the run has {self.run.steps:,} steps")
        if self.first:
            self.folder.prepare(self.run)

    def say(self, text: str) -> None:
        if self.first:
            self.console.print(text, highlight=False, soft_wrap=True)

    def go(self, stop: Stop) -> None:
        """Train to the end, or until a signal stops it, which is then raised as a StoppedError."""
        run = self.run
        if self.step == run.steps and not self.evaluation_due:
            self.say(f"{run.name} was finished before, in {self.folder.path}")
            return
        log = Log(
            self.folder.path,
            run.name,
            run.steps,
            step=self.step,
            evaluation_due=self.evaluation_due,
            quiet=not self.first,
            console=self.console,
            writer=self.writer,
        )
        stop.saves = True
        try:
            self.steps(log, stop)
        finally:
            stop.saves = False
            log.close()

    def steps(self, log: Log, stop: Stop) -> None:
        run = self.run
        began, seen, lap = time.monotonic() - self.seconds, 0, time.monotonic()
        if self.evaluation_due:  # left out by a stop, or due by settings that changed
            try:
                self.evaluate(log, stop)
            except Left:
                raise StoppedError(f"stopped at step {self.step:,}, which was saved before") from None
            if self.first:
                self.folder.checkpoints.amend(self.step, self.evaluation)
            lap = time.monotonic()
        while self.step < run.steps:
            rate = run.schedule.factor(self.step, run.steps)
            seen += self.update(rate)
            last = self.step == run.steps
            logged = last or self.step % run.log_every == 0
            if logged:
                self.last_loss = self.mean_loss()  # waits for the device, so it comes before the clock
                self.seconds = time.monotonic() - began
                self.note(log, rate, seen / (time.monotonic() - lap))
                seen, lap = 0, time.monotonic()
            else:
                log.move(self.step)
            stopping, better, pause = self.stopping(stop, logged), False, time.monotonic()
            if self.evaluation_due and not stopping:
                try:
                    better = self.evaluate(log, stop)
                except Left:
                    stopping = True
            if last or better or stopping or self.step % run.save_every == 0:
                self.seconds = time.monotonic() - began
                self.save()
            lap += time.monotonic() - pause  # the speed is that of training
            if stopping:
                left = "; its evaluation is left for later" if self.evaluation_due else ""
                raise StoppedError(f"stopped at step {self.step:,}, which is saved{left}")
        best = "" if self.best_step in (0, run.steps) else f" (best at step {self.best_step:,})"
        ended = f"{run.name}: {run.steps:,} steps in {clock(self.seconds)}{self.metrics_text}{best}"
        log.say(f"{ended}, {self.folder.path}")

    def mean_loss(self) -> float:
        """Over the steps since the last line of the log."""
        total, count = self.take_losses()
        if not math.isfinite(total / count):
            raise self.diverged(f"the loss is {total / count}")
        return total / count

    def note(self, log: Log, rate: float, speed: float) -> None:
        """Write a line of the log."""
        unit = self.run.task.unit
        numbers = {"loss": self.last_loss, "rate": rate, f"{unit}_per_second": speed, "seconds": self.seconds}
        log.numbers(self.step, **numbers)
        log.progress(self.step, f"loss {self.last_loss:.4f}{self.metrics_text}  {speed:,.0f} {unit}/s")

    @property
    def metrics_text(self) -> str:
        """The last evaluation, as the log shows it."""
        return "".join(f"  {name} {value:.4f}" for name, value in self.metrics.items())

    @property
    def evaluation_due(self) -> bool:
        """Whether an evaluation is due, and was not made."""
        due = self.step == self.run.steps or (self.step > 0 and self.step % self.run.evaluate_every == 0)
        return due and self.evaluated != self.step

    def evaluate(self, log: Log, stop: Stop) -> bool:
        """Evaluate and log. Returns whether the model is the best so far."""
        task = self.run.task
        with log.doing("evaluating"):
            measured = self.measure(stop)
        if task.metric not in measured:
            raise ValueError(
                f"the development set gave {', '.join(measured) or 'nothing'}, and task {type(task).__name__} is "
                f"evaluated by {task.metric}"
            )
        score = measured[task.metric] * (-1 if task.higher_is_better else 1)
        # "loss" is that of training in the log and in results
        self.metrics = {"dev_loss" if name == "loss" else name: value for name, value in measured.items()}
        better = score < self.best
        if better:
            self.best, self.best_step = score, self.step
        self.evaluated = self.step
        log.numbers(self.step, **self.metrics)
        return better

    @property
    def evaluation(self) -> dict[str, Any]:
        """The facts of a checkpoint that an evaluation changes."""
        return dict(best_step=self.best_step or None, best=self.best, metrics=self.metrics, evaluated=self.evaluated)

    def save(self) -> None:
        if not self.is_finite():
            raise self.diverged("the loss or weights are no numbers any more")
        facts = dict(run=self.run.name, data=self.data, last_loss=self.last_loss, seconds=self.seconds)
        self.write({**facts, **self.evaluation})

    def diverged(self, what: str) -> DivergedError:
        last = self.folder.checkpoints.last()
        left = "there is no earlier checkpoint" if last is None else f"the last good checkpoint is {last}"
        return DivergedError(
            f"{what} at step {self.step:,} (or up to {self.run.log_every} steps before); {left}. "
            f"Another run with {self.advice} may help."
        )
