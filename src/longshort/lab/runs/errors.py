"""What can go wrong in a training that its user must know of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten


class TrainingError(RuntimeError):
    """Says what happened, what is left, and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written or read."""


class DivergedError(TrainingError):
    """The loss, or the weights, are no numbers any more."""


class StoppedError(TrainingError):
    """Someone stopped the run, which was saved."""


def one_line(error: BaseException) -> str:
    """Its message, however long, as one line."""
    return shorten(str(error), 300, placeholder=" ...") or type(error).__name__


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what a disk can say into words."""
    try:
        yield
    except BlockingIOError:  # a lock, not the disk
        raise
    except OSError as error:
        where = "" if error.filename in (None, str(folder)) else f" ({error.filename})"
        raise TrainingError(
            f"cannot write in {folder}: {error.strerror or error}{where}. "
            "Make room or give another folder, then go on with --resume."
        ) from error
