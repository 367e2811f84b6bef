"""Training of the Long Range Arena's classifiers in JAX, with the data, batches and settings of PyTorch's recipes:

python -m longshort.lab.jax.train listops

Each checkpoint of a run is a model that PyTorch reads if it has the attention (long-short or full).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console

from longshort.lab.jax.earlier import convert
from longshort.lab.jax.recipes import Dtype, listops, resized, text
from longshort.lab.jax.tasks import check_run
from longshort.lab.jax.trainer import STATE, WEIGHTS, Trainer, device, read_arrays, write_checkpoint
from longshort.lab.runs.checkpoints import check
from longshort.lab.runs.errors import CheckpointError, DivergedError, StoppedError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import Log, clock
from longshort.lab.runs.run import Run
from longshort.lab.runs.signals import Left, Stop


@dataclass(frozen=True)
class Result:
    """How a run ended. best: the accuracy on the development set at best_step; test: that checkpoint's on the test
    set."""

    folder: Path
    step: int
    loss: float
    best: float
    best_step: int
    seconds: float
    test: float
    device: str


def train(run: Run, out: Path, *, resume: bool = False, console: Console | None = None) -> Result:
    """Train in a folder of the run's name under `out`, and evaluate the best checkpoint on the test set.

    resume: go on from the last checkpoint, if there is one.
    """
    check_run(run)
    folder = RunFolder(out / run.name)
    with Stop() as stop, folder.locked():
        loop = Loop(run, folder, resume=resume, console=console or Console(stderr=True))
        loop.go(stop)
        return loop.finish()


class Loop:
    """One run under way. What a checkpoint must hold is what changes here from step to step."""

    def __init__(self, run: Run, folder: RunFolder, *, resume: bool, console: Console) -> None:
        self.run, self.folder, self.console = run, folder, console
        convert(folder, resume=resume)
        start = folder.start(run, resume=resume, say=self.say)
        self.data = run.task.fingerprint()
        self.step = 0
        self.loss_sum: Any = 0.0  # since the last line of the log
        self.loss_count = 0
        self.last_loss = math.nan
        self.metrics: dict[str, float] = {}
        self.best_step, self.best = 0, math.inf
        self.evaluated = 0  # the step of the last evaluation
        self.seconds = 0.0
        run.task.batch(0)  # refuses a batch larger than the data before anything is written
        self.trainer = Trainer(run)
        if start is not None:
            self.load(start)
        folder.prepare(run)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def go(self, stop: Stop) -> None:
        run = self.run
        if self.step == run.steps and not self.owes:
            self.say(f"{run.name} was finished before, in {self.folder.path}")
            return
        log = Log(
            self.folder.path, run.name, run.steps, step=self.step, owes=self.owes, quiet=False, console=self.console
        )
        stop.saves = True
        try:
            self.loop(log, stop)
        finally:
            stop.saves = False
            log.close()

    def loop(self, log: Log, stop: Stop) -> None:
        run = self.run
        began, seen, lap = time.monotonic() - self.seconds, 0, time.monotonic()
        if self.owes:  # left out by a stop, or due by settings that changed
            try:
                self.evaluate(log, stop)
            except Left:
                raise StoppedError(f"stopped at step {self.step:,}, which was saved before") from None
            self.folder.checkpoints.amend(self.step, self.evaluation)
            lap = time.monotonic()
        while self.step < run.steps:
            seen += self.update()
            last = self.step == run.steps
            if self.step % run.log_every == 0 or last:
                loss, speed = self.mean_loss(), seen / (time.monotonic() - lap)
                rate, self.seconds = run.schedule.factor(self.step - 1, run.steps), time.monotonic() - began
                log.numbers(self.step, loss=loss, rate=rate, tokens_per_second=speed, seconds=self.seconds)
                log.progress(self.step, f"loss {loss:.4f}{self.last_metrics()}  {speed:,.0f} tokens/s")
                seen, lap = 0, time.monotonic()
            else:
                log.move(self.step)
            better, stopping, pause = False, stop.wanted, time.monotonic()
            if self.owes and not stopping:
                try:
                    better = self.evaluate(log, stop)
                except Left:
                    stopping = True
            if last or better or stopping or self.step % run.save_every == 0:
                self.seconds = time.monotonic() - began
                self.save()
            lap += time.monotonic() - pause  # the speed is that of training
            if stopping:
                left = "; its evaluation is left for later" if self.owes else ""
                raise StoppedError(f"stopped at step {self.step:,}, which is saved{left}")
        best = "" if self.best_step == run.steps else f" (best at step {self.best_step:,})"
        done = f"{run.name}: {run.steps:,} steps in {clock(self.seconds)}{self.last_metrics()}{best}"
        log.say(f"{done}, {self.folder.path}")

    def update(self) -> int:
        """One step of the optimizer. How many tokens it learned from."""
        tokens, labels = self.run.task.batch(self.step)
        self.loss_sum = self.loss_sum + self.trainer.learn(self.step, tokens, labels)
        self.loss_count += 1
        self.step += 1
        return int(np.count_nonzero(tokens))

    def mean_loss(self) -> float:
        """Over the steps since the last line of the log."""
        self.last_loss = float(self.loss_sum) / self.loss_count
        self.loss_sum, self.loss_count = 0.0, 0
        if not math.isfinite(self.last_loss):
            raise self.diverged(f"the loss is {self.last_loss}")
        return self.last_loss

    def last_metrics(self) -> str:
        return "".join(f"  {name} {value:.4f}" for name, value in self.metrics.items())

    @property
    def owes(self) -> bool:
        """Whether an evaluation is due, and was not made."""
        due = self.step == self.run.steps or (self.step > 0 and self.step % self.run.evaluate_every == 0)
        return due and self.evaluated != self.step

    def evaluate(self, log: Log, stop: Stop) -> bool:
        """Whether the model is better than it was. A signal leaves it."""
        with log.doing("evaluating"), stop.leaving(True):
            accuracy = self.trainer.accuracy(self.run.task.splits.dev)
        better = -accuracy < self.best
        if better:
            self.best, self.best_step = -accuracy, self.step
        self.metrics, self.evaluated = {"accuracy": accuracy}, self.step
        log.numbers(self.step, **self.metrics)
        return better

    @property
    def evaluation(self) -> dict[str, Any]:
        """Of all that a checkpoint notes, what an evaluation changes."""
        return dict(best_step=self.best_step or None, best=self.best, metrics=self.metrics, evaluated=self.evaluated)

    def save(self) -> None:
        loss_sum = float(self.loss_sum)
        if not (math.isfinite(loss_sum) and self.trainer.is_finite()):
            raise self.diverged("the loss or weights are no numbers any more")
        facts = dict(
            run=self.run.name,
            data=self.data,
            last_loss=self.last_loss,
            loss_sum=loss_sum,
            loss_count=self.loss_count,
            seconds=self.seconds,
            **self.evaluation,
        )
        write_checkpoint(self.folder.checkpoints, self.step, self.trainer.files, facts)

    def load(self, path: Path) -> None:
        facts = check(path)
        if facts["data"] != self.data:
            raise TrainingError(
                f"the data is not what {self.folder.path} had at step {facts['step']:,}, and a run goes on with "
                "what it began with. Say where that is (run.json has it), restore it, or give another --out."
            )
        if facts["step"] > self.run.steps:
            raise TrainingError(f"{path} is of step {facts['step']:,}, and the run has {self.run.steps:,} steps")
        try:
            self.trainer.restore(read_arrays(path / STATE))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path} does not fit this run: {error}") from error
        self.step, self.metrics, self.seconds = facts["step"], facts["metrics"], facts["seconds"]
        self.best_step, self.best, self.evaluated = facts["best_step"] or 0, facts["best"], facts["evaluated"]
        self.last_loss, self.loss_sum, self.loss_count = facts["last_loss"], facts["loss_sum"], facts["loss_count"]

    def diverged(self, what: str) -> DivergedError:
        last = self.folder.checkpoints.last()
        left = "there is no earlier checkpoint" if last is None else f"the last good checkpoint is {last}"
        return DivergedError(
            f"{what} at step {self.step:,} (or up to {self.run.log_every} steps before); {left}. "
            "Another run with a lower learning rate, a longer warm-up or float32 may help."
        )

    def finish(self) -> Result:
        """Evaluate the best checkpoint on the test set, and write what came out."""
        best = self.folder.checkpoints.best()
        assert best is not None
        step = check(best)["step"]
        self.trainer.load_weights(read_arrays(best / WEIGHTS))
        test = self.trainer.accuracy(self.run.task.splits.test)
        result = Result(
            self.folder.path, self.step, self.last_loss, -self.best, self.best_step, self.seconds, test, device()
        )
        self.folder.write_result({**vars(result), "folder": str(result.folder)})
        evaluated = {
            "run": self.run.name,
            "checkpoint": step,
            "dev": -self.best,
            "accuracy": {"test": test},
            "source": self.run.task.source.name,
            "data": self.data,
            "precision": self.run.model.dtype,
            "device": result.device,
        }
        self.folder.write_evaluated(evaluated)
        return result


def main(
    task: Literal["listops", "text"],
    /,
    *,
    attention: str = "8,32",
    data: Path | None = None,
    brackets: bool = False,
    steps: int | None = None,
    batch: int = 32,
    longest: int | None = None,
    evaluate_every: int | None = None,
    dtype: Dtype = "float32",
    seed: int = 0,
    out: Path = Path("out"),
    resume: bool = False,
) -> None:
    """Train a classifier of the Long Range Arena in JAX, with the paper's settings.

    Args:
        task: listops, or text (whether a review of IMDb is positive)
        attention: WINDOW,RANK, or full, local, linformer, performer
        data: for listops, the folder of the official files (generated unless given); for text, IMDb
        brackets: ListOps with closing brackets, which the paper's has not
        steps: other than the paper's 5,000 and 20,000; the warm-up is as much shorter
        batch: sequences of a step
        longest: tokens of a sequence, at most; 2,000 and 4,000 unless given
        evaluate_every: steps between evaluations on the development set; 50 and 500 unless given
        dtype: what is computed in
        seed: of weights, dropout and the order of examples
        out: the run gets a folder of its name in this one
        resume: go on with the run that is there
    """
    if brackets and task != "listops":
        raise ValueError(f"brackets are ListOps', not those of {task}")
    usual = listops(attention, brackets, data, dtype, seed) if task == "listops" else text(attention, data, dtype, seed)
    run = resized(usual, steps=steps, batch=batch, longest=longest, evaluate_every=evaluate_every)
    result = train(run, out, resume=resume)
    print(f"test: {100 * result.test:.2f} %, at step {result.best_step:,}, the best on the development set")
    print(f"{result.folder}: {result.seconds / 60:.1f} minutes on {result.device}")


def command_line(command: Callable[..., None], name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors that its user can mend are one line."""
    try:
        tyro.cli(command, prog=name, args=arguments)
    except (StoppedError, KeyboardInterrupt) as stop:
        print(f"longshort.jax: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    except (TrainingError, ValueError, OSError) as error:
        print(f"longshort.jax: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command_line(main, "python -m longshort.lab.jax.train"))
