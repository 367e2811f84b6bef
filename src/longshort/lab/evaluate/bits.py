"""How many bits a language model needs for a text: by the paper's protocol, or in one reading.

N predictions: the bytes of a text but the first. B sequences of a batch, L their length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.splits import Text
from longshort.lab.evaluate.evaluator import Advance, Share, Workers
from longshort.serial import registered

BLOCK = 8_192  # read at once, unless less is asked for


class Span(NamedTuple):
    """A sequence to read, text[start:end], and how many of its last predictions count."""

    start: int
    end: int
    counted: int


def spans(n: int, length: int, step: int) -> list[Span]:
    """Sequences of one length, `step` apart, that count each of n predictions once: each as late as it can be."""
    length = min(length, n)
    ends = [*range(length, n, step), n]
    counted = [length, *(b - a for a, b in pairwise(ends))]
    return [Span(end - length, end, count) for end, count in zip(ends, counted, strict=True)]


@registered("Windows")
@dataclass(frozen=True)
class Windows:
    """The paper's: overlapping sequences of `context` characters, `step` apart, of each of which the last `step` are
    counted. Each is read from its own start, so that a character is read context / step times."""

    context: int = 32_768
    step: int = 512
    batch: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.step <= self.context or self.batch < 1:
            raise ValueError(
                f"step must lie between 1 and context and batch be at least 1, "
                f"got step {self.step}, context {self.context}, batch {self.batch}"
            )

    def __str__(self) -> str:
        return f"the paper's protocol (sequences of {self.context:,} characters, the last {self.step} of each counted)"

    def spans(self, n: int) -> list[Span]:
        return spans(n, self.context, self.step)


@registered("Reading")
@dataclass(frozen=True)
class Reading:
    """The fast one: `batch` lanes read the text once; a lane first reads the `context` characters before those that it
    counts."""

    context: int = 32_768
    batch: int = 8

    def __post_init__(self) -> None:
        if self.context < 0 or self.batch < 1:
            raise ValueError(
                f"context must not be negative and batch be at least 1, got context {self.context}, batch {self.batch}"
            )

    def __str__(self) -> str:
        return f"one reading by {self.batch} lanes, {self.context:,} characters of context or more (not the paper's)"

    def spans(self, n: int) -> list[Span]:
        share = max(math.ceil((n - self.context) / self.batch), 1)
        return spans(n, self.context + share, share)


@dataclass(frozen=True, eq=False)
class BitsPerCharacter:
    """A language model on a text. block: the characters that the model reads at once, with its caches."""

    name: str
    text: Text
    protocol: Windows | Reading
    block: int | None = None

    @property
    def size(self) -> int:
        return work(self.text, self.protocol)

    def run(self, model: nn.Module, processes: Workers, advance: Advance) -> dict[str, Share]:
        part = bits(
            model, self.text, self.protocol, processes.index, processes.count, block=self.block, advance=advance
        )
        return {"bpc": Share(*part)}


@torch.no_grad()
def bits(
    model: nn.Module,
    text: Text,
    protocol: Windows | Reading,
    part: int = 0,
    parts: int = 1,
    *,
    block: int | None = None,
    advance: Advance = lambda count: None,
) -> tuple[float, int]:
    """Bits for the predictions of a part of the sequences, and how many these are. The model is in eval mode.

    A sequence is read in blocks, with the model's caches, as the model was trained: blocks should not be longer.
    """
    if len(text) < 2:
        raise ValueError(f"text of {len(text)} bytes has nothing to predict")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    device = next(model.parameters()).device
    block = block or BLOCK
    mine = protocol.spans(len(text) - 1)[part::parts]
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for at in range(0, len(mine), protocol.batch):
        batch = mine[at : at + protocol.batch]
        missing = protocol.batch - len(batch) if at else 0
        alike = [*batch, *batch[-1:] * missing]  # one shape for all batches, for the sake of compiled models
        length, caches = batch[0].end - batch[0].start, None
        for first in range(0, length, block):
            size = min(block, length - first)
            starts = [span.start + first for span in alike]
            logits, caches = model(read(text, starts, size, device), caches)
            losses = nats(logits, read(text, [s + 1 for s in starts], size, device))  # [B, size]
            for line, span in zip(losses, batch, strict=False):
                counted = min(max(span.counted - (length - first - size), 0), size)
                total += line[size - counted :].sum(dtype=torch.float64)
                count += counted
            advance(size * len(batch))
    return total.item() / math.log(2), count


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, L, V], [B, L] → [B, L]"""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def read(text: Text, starts: Sequence[int], length: int, device: torch.device) -> Tensor:
    """[B, L], long"""
    lines = np.stack([text[start : start + length] for start in starts])
    return torch.from_numpy(lines).to(device).long()


def work(text: Text, protocol: Windows | Reading) -> int:
    """How many characters will be read."""
    return sum(span.end - span.start for span in protocol.spans(len(text) - 1))
