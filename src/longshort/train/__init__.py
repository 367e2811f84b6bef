"""Training: the loop, checkpoints, optimizers and schedules; knows only the Task protocol."""

from longshort.train.errors import CheckpointError, Diverged, Interrupted, TrainingError
from longshort.train.fit import Result, train
from longshort.train.optimizer import AdamW, Muon
from longshort.train.run import Run, as_json, from_json
from longshort.train.schedule import Schedule
from longshort.train.task import Task

__all__ = [
    "AdamW",
    "CheckpointError",
    "Diverged",
    "Interrupted",
    "Muon",
    "Result",
    "Run",
    "Schedule",
    "Task",
    "TrainingError",
    "as_json",
    "from_json",
    "train",
]
