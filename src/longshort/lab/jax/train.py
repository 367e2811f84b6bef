"""Training of the Long Range Arena's classifiers in JAX, with the data, batches and settings of PyTorch's recipes:

python -m longshort.lab.jax.train listops

Each checkpoint of a run is a model that PyTorch reads if it has the attention (long-short or full).
"""

from __future__ import annotations

import math
import sys
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
from longshort.lab.jax.trainer import STATE, Trainer, device, read_arrays, write_checkpoint
from longshort.lab.runs.checkpoints import WEIGHTS, check
from longshort.lab.runs.errors import CheckpointError, StoppedError, TrainingError, one_line
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.loop import Loop
from longshort.lab.runs.run import Run
from longshort.lab.runs.signals import Stop


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


def train(
    run: Run, out: Path | str, *, resume: bool = False, keep_length: bool = False, console: Console | None = None
) -> Result:
    """Train in a folder of the run's name under `out`, and evaluate the best checkpoint on the test set.

    resume: go on from the last checkpoint, if there is one.
    keep_length: resume with the recorded steps and warm-up, not those of `run`.
    """
    check_run(run)
    folder = RunFolder(Path(out) / run.name)
    with Stop() as stop, folder.locked():
        convert(folder, resume=resume)
        run = folder.with_recorded_length(run) if resume and keep_length else run
        loop = JaxLoop(run, folder, resume=resume, console=console or Console(stderr=True))
        loop.go(stop)
        return loop.finish()


class JaxLoop(Loop):
    """What a checkpoint must hold is what changes here from step to step."""

    advice = "a lower learning rate, a longer warm-up or float32"

    def __init__(self, run: Run, folder: RunFolder, *, resume: bool, console: Console) -> None:
        super().__init__(run, folder, resume=resume, console=console)
        run.task.batch(0)  # refuses a batch larger than the data before anything is written
        self.trainer = Trainer(run)
        self.loss_sum: Any = 0.0  # since the last line of the log
        self.loss_count = 0
        self.begin()

    def update(self, rate: float) -> int:
        tokens, labels = self.run.task.batch(self.step)
        self.loss_sum = self.loss_sum + self.trainer.learn(self.step, rate, tokens, labels)
        self.loss_count += 1
        self.step += 1
        return int(np.count_nonzero(tokens))

    def take_losses(self) -> tuple[float, float]:
        total, count = float(self.loss_sum), self.loss_count
        self.loss_sum, self.loss_count = 0.0, 0
        return total, count

    def measure(self, stop: Stop) -> dict[str, float]:
        with stop.leaving(True):
            return {"accuracy": self.trainer.accuracy(self.run.task.splits.dev)}

    def is_finite(self) -> bool:
        return math.isfinite(float(self.loss_sum)) and self.trainer.is_finite()

    def write(self, facts: dict[str, Any]) -> None:
        losses = dict(loss_sum=float(self.loss_sum), loss_count=self.loss_count)
        write_checkpoint(self.folder.checkpoints, self.step, self.trainer.files, {**facts, **losses})

    def read(self, path: Path) -> dict[str, Any]:
        facts = check(path, (WEIGHTS, STATE))
        try:
            self.trainer.restore(read_arrays(path / STATE))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {path} does not fit this run: {error}") from error
        self.loss_sum, self.loss_count = facts.get("loss_sum", 0.0), facts.get("loss_count", 0)
        return facts

    def finish(self) -> Result:
        """Evaluate the best checkpoint on the test set, and write what came out."""
        best = self.folder.checkpoints.best()
        assert best is not None
        check(best)
        try:
            self.trainer.load_weights(read_arrays(best / WEIGHTS))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {best} does not fit this run: {one_line(error)}") from error
        test = self.trainer.accuracy(self.run.task.splits.test)
        result = Result(
            self.folder.path, self.step, self.last_loss, -self.best, self.best_step, self.seconds, test, device()
        )
        self.folder.write_result({**vars(result), "folder": str(result.folder)})
        self.folder.write_evaluated(
            self.run, best, {"test": test}, data=self.data, precision=self.run.model.dtype, device=result.device
        )
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
        steps: other than the paper's 5,000 and 20,000, or those a resumed run began with; with a warm-up in proportion
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
    result = train(run, out, resume=resume, keep_length=steps is None)
    print(f"test: {100 * result.test:.2f} %, at step {result.best_step:,}, the best on the development set")
    print(f"{result.folder}: {result.seconds / 60:.1f} minutes on {result.device}")


def command_line(command: Callable[..., None], name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors that its user can mend are one line."""
    try:
        tyro.cli(command, prog=name, args=arguments)
    except KeyboardInterrupt:
        print("longshort.jax: interrupted", file=sys.stderr)
        return 130
    except StoppedError as stop:
        print(f"longshort.jax: {stop}; --resume goes on from there", file=sys.stderr)
        return 130
    except (TrainingError, ValueError, OSError) as error:
        print(f"longshort.jax: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command_line(main, "python -m longshort.lab.jax.train"))
