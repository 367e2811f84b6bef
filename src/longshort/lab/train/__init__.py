"""Training: the loop, checkpoints, optimizers and schedules; knows only the Task protocol."""

from longshort.lab.runs.errors import CheckpointError, DivergedError, StoppedError, TrainingError
from longshort.lab.runs.folder import read_run
from longshort.lab.runs.optimizers import AdamW, Muon
from longshort.lab.runs.run import Run
from longshort.lab.runs.schedule import Schedule
from longshort.lab.tasks.task import Task
from longshort.lab.train.fit import Result, train

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
    "read_run",
    "train",
]
