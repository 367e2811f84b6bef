"""What can go wrong in a training that its user must know of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TrainingError(RuntimeError):
    """Says what happened, what is left, and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written or read."""


class DivergedError(TrainingError):
    """The loss, or the weights, are no numbers any more."""


class StoppedError(TrainingError):
    """Someone stopped the run, which was saved."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what a disk can say into words."""
    try:
        yield
    except BlockingIOError:  # a lock, not the disk
        raise
    except OSError as error:
        raise TrainingError(
            f"cannot write in {folder}: {error.strerror or error}. "
            "Make room or give another folder, then go on with --resume."
        ) from error
