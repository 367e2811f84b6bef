"""Run folders of earlier versions, turned into folders of today's kind.

They have last.safetensors (weights and optimizer state; settings, progress and data in its metadata) and the best
model in the folder `best`. Both are removed once they are checkpoints.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from longshort.lab.jax.recipes import listops, resized, text
from longshort.lab.jax.trainer import Arrays, Trainer, model_files, read_arrays, write_checkpoint
from longshort.lab.runs.checkpoints import WEIGHTS
from longshort.lab.runs.errors import CheckpointError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import read_log
from longshort.lab.runs.run import Run
from longshort.serial import UNREADABLE


@dataclass(frozen=True)
class Earlier:
    """What last.safetensors holds. best: the accuracy at best_step; both are of no evaluation where best_step is 0."""

    run: Run
    data: str
    arrays: Arrays
    step: int
    best: float
    best_step: int
    seconds: float


def convert(folder: RunFolder, *, resume: bool) -> None:
    """Does nothing to a folder of today. A conversion that was interrupted is done again."""
    last, best = folder.path / "last.safetensors", folder.path / "best"
    if not last.exists():
        return
    if not resume:
        raise TrainingError(f"{folder.path} holds a run already: go on with --resume, or give another --out")
    before, checkpoints = read_last(last), folder.checkpoints
    folder.prepare(before.run)  # a checkpoint without its settings could not be resumed
    facts = facts_of(before, read_log(folder.path))
    if before.best_step not in (0, before.step, *checkpoints.steps()):
        files = model_files(before.run.model, read_arrays(best / WEIGHTS))  # nobody goes on from it: it needs no state
        write_checkpoint(checkpoints, before.best_step, files, {**facts, "metrics": {"accuracy": before.best}})
    if before.step not in checkpoints.steps():
        trainer = Trainer(before.run)
        try:
            trainer.restore(before.arrays)
        except ValueError as error:
            raise CheckpointError(f"{last} does not fit this run: {error}") from error
        write_checkpoint(checkpoints, before.step, trainer.files, facts)
    shutil.rmtree(best, ignore_errors=True)
    last.unlink()


def read_last(path: Path) -> Earlier:
    try:
        with safe_open(path, "np") as file:
            record, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        del arrays[str(len(arrays) - 1)]  # the schedule's count, which optax kept
        progress = json.loads(record["progress"])
        return Earlier(run_of(json.loads(record["training"])), record["data"], arrays, **progress)
    except (SafetensorError, OSError, *UNREADABLE) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def run_of(training: Mapping[str, Any]) -> Run:
    """The run that these settings describe. Where its data was is not recorded."""
    common = dict(attention=training["attention"], dtype=training["dtype"], seed=training["seed"])
    run = listops(brackets=training["brackets"], **common) if training["task"] == "listops" else text(**common)
    run = resized(run, **{name: training[name] for name in ("steps", "batch", "longest", "evaluate_every")})
    return replace(
        run,
        model=replace(run.model, dropout=training["dropout"], attention_dropout=training["dropout"]),
        optimizer=replace(run.optimizer, lr=training["rate"]),
        schedule=replace(run.schedule, warmup=training["warmup"]),
    )


def facts_of(before: Earlier, log: list[dict[str, float]]) -> dict[str, Any]:
    """Of the checkpoint of its last step."""
    step, every = before.step, before.run.evaluate_every
    evaluated = step if step == before.run.steps else step - step % every
    line = next((line for line in reversed(log) if line["step"] == evaluated), {})
    return {
        "run": before.run.name,
        "data": before.data,
        "last_loss": line.get("loss", math.nan),
        "loss_sum": 0.0,
        "loss_count": 0,
        "seconds": before.seconds,
        "best_step": before.best_step or None,
        "best": -before.best if before.best_step else math.inf,
        "metrics": {"accuracy": line["accuracy"]} if "accuracy" in line else {},
        "evaluated": evaluated,
    }
