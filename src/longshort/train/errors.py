"""What can go wrong in a training that its user must know of."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Says what happened, what is left, and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written or read."""


class DivergedError(TrainingError):
    """The loss, or the weights, are no numbers any more."""


class StoppedError(TrainingError):
    """Someone stopped the run, which was saved."""
