"""Training: the loop, checkpoints, optimizers and schedules; knows only the Task protocol."""

from longshort.serial import as_json, from_json
from longshort.lab.runs.errors import CheckpointError, DivergedError, StoppedError, TrainingError
from longshort.lab.train.fit import Result, train
from longshort.lab.train.optimizer import AdamW, Muon
from longshort.lab.runs.run import Run, read_run
from longshort.lab.runs.schedule import Schedule
from longshort.lab.tasks.task import Task

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
