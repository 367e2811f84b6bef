"""Contiguous lanes over a text: batches in which each sequence goes on where it stopped in the batch before.

N bytes of text, B lanes, L length. Lane b starts at byte b · (N // B), reads L bytes a step, and wraps at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longshort.lab.data.shard import WHOLE, Shard
from longshort.lab.data.splits import Text


@dataclass(frozen=True, eq=False)
class Lanes:
    """`lanes` places of a text that are read side by side. A batch depends on the step alone: the step is the position,
    and a run resumes by asking for its next step."""

    text: Text  # [N]
    lanes: int
    length: int

    def __post_init__(self) -> None:
        if self.text.dtype != np.uint8 or self.text.ndim != 1:
            raise ValueError(f"text must be one axis of uint8, got {self.text.ndim} axes of {self.text.dtype}")
        if self.lanes < 1 or self.length < 1:
            raise ValueError(f"lanes and length must be at least 1, got lanes {self.lanes}, length {self.length}")
        need = max(self.lanes * self.length, self.length + 1)  # the last input has a target as well
        if len(self.text) < need:
            raise ValueError(
                f"text of {len(self.text):,} bytes is too short for {self.lanes} lanes of {self.length} bytes, "
                f"which need {need:,}: take fewer or shorter lanes, or more text"
            )

    @property
    def stride(self) -> int:
        """Bytes from the start of a lane to the start of the next: after so many, the lanes have read the text once."""
        return len(self.text) // self.lanes

    def batch(self, step: int, shard: Shard = WHOLE) -> Tensor:
        """Inputs are [:, :-1], targets [:, 1:]; the last byte is the first of the same lane at the next step."""
        if step < 0:
            raise ValueError(f"step must not be negative, got {step}")
        text = np.asarray(self.text)  # slices of a plain array are cheaper than those of a memmap
        lanes = range(self.lanes)[shard.part(self.lanes)]
        batch = np.empty((len(lanes), self.length + 1), np.uint8)  # [lanes of the shard, L + 1]
        for row, lane in zip(batch, lanes, strict=True):
            _read(text, lane * self.stride + step * self.length, row)
        return torch.from_numpy(batch)


def _read(text: Text, position: int, row: Text) -> None:
    """Fills row from a position of the endlessly repeated text; a row is no longer than the text."""
    start = position % len(text)
    here = min(len(row), len(text) - start)
    row[:here] = text[start : start + here]
    row[here:] = text[: len(row) - here]
