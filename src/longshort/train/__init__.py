"""Training: the loop, checkpoints, optimizers and schedules; knows only the Task protocol."""

from longshort.record import as_json, from_json
from longshort.train.errors import CheckpointError, DivergedError, StoppedError, TrainingError
from longshort.train.fit import Result, train
from longshort.train.optimizer import AdamW, Muon
from longshort.train.run import Run, read_run
from longshort.train.schedule import Schedule
from longshort.train.task import Task

__all__ = [
    "AdamW",
    "CheckpointError",
    "DivergedError",
    "Muon",
    "Result",
    "Run",
    "Schedule",
    "StoppedError",
    "Task",
    "TrainingError",
    "as_json",
    "from_json",
    "read_run",
    "train",
]
