"""Pictures with labels, read and cut on the way: squares of one size, by other processes and ahead of their time.

B pictures of a batch, S side of what is cut out of each.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import itertools
import logging
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from longshort.lab.data.archive import Entry, entries
from longshort.lab.data.labelled import Numbers
from longshort.lab.data.official import from_extra
from longshort.serial import registered

logger = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, by colour
MOST_WORKERS = 16
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of what is cut out to train on, as all of ImageNet's recipes have it


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures and what they show."""

    entries: Sequence[Entry]
    labels: Numbers
    broken: dict[int, str] = field(default_factory=dict)  # by number: why

    def __len__(self) -> int:
        return len(self.entries)

    def read(self, i: int, cut: Callable[[Any], Bytes]) -> Bytes | str:
        """What `cut` makes of picture i, or why it cannot be read."""
        image = from_extra("PIL.Image", "pillow")
        try:
            with image.open(io.BytesIO(self.entries[i].read())) as opened:
                return cut(opened)
        except ImportError:  # not the picture's fault
            raise
        except image.UnidentifiedImageError:
            return "it is no picture"
        except Exception as error:  # of damaged files, decoders raise nearly everything
            return str(error) or type(error).__name__

    def note(self, broken: Iterable[tuple[int, str]]) -> None:
        """Name and count those that cannot be read, each once."""
        for i, reason in broken:
            if i not in self.broken:
                self.broken[i] = reason
                logger.warning(
                    "skipped %s, which cannot be read (%s); %d so far", self.entries[i], reason, len(self.broken)
                )

    def fingerprint(self) -> str:
        """Of names, sizes and labels; reading a million pictures would take too long."""
        made = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for entry in self.entries:
            made.update(f"{entry.name} {entry.size}\n".encode())
        return made.hexdigest()


@dataclass(frozen=True, eq=False)
class PictureSplits:
    train: Pictures
    dev: Pictures
    classes: tuple[str, ...]

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.train.fingerprint()}{self.dev.fingerprint()}".encode()).hexdigest()


@registered("ImageFolder")
@dataclass(frozen=True)
class ImageFolder:
    """ImageNet, or pictures of one's own: folders train and val with a folder for each class, as they are or in zip or
    tar files. Classes are numbered in the order of their names."""

    path: Path

    @property
    def name(self) -> str:
        return Path(self.path).name

    def splits(self) -> PictureSplits:
        train, dev = (entries(Path(self.path), split) for split in ("train", "val"))
        classes = in_order({entry.kind for entry in train})
        return PictureSplits(labelled(train, classes), labelled(dev, classes), classes)


def in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    """Names by the alphabet, numbers by their size."""
    kinds = set(kinds)
    return tuple(sorted(kinds, key=int)) if all(kind.isdigit() for kind in kinds) else tuple(sorted(kinds))


def labelled(found: Sequence[Entry], classes: Sequence[str]) -> Pictures:
    number = {kind: i for i, kind in enumerate(classes)}
    if unknown := [entry for entry in found if entry.kind not in number]:
        count = len({entry.kind for entry in unknown})
        raise ValueError(f"{unknown[0]} is of a class that is not known, {unknown[0].kind!r} ({count} such classes)")
    return Pictures(found, np.array([number[entry.kind] for entry in found], np.int64))


# What is cut out of a picture


class View(Protocol):
    """What is made of a picture, [3, S, S], when it is evaluated; it can be sent to another process."""

    @property
    def side(self) -> int: ...

    def __call__(self, image: Any) -> Bytes: ...


@dataclass(frozen=True)
class Middle:
    """Of the largest square in the middle, a square of `share` of its side, made `side` wide."""

    side: int
    share: float = 0.875

    def __post_init__(self) -> None:
        if self.side < 1 or not 0 < self.share <= 1:
            raise ValueError(
                f"pictures must be seen at least 1 pixel wide, and a share of them that is above 0 and at most 1, got "
                f"side {self.side} and crop {self.share}"
            )

    def box(self, size: tuple[int, int]) -> Box:
        """Of a picture so wide and so high."""
        most = min(size) * self.share
        left, top = (size[0] - most) / 2, (size[1] - most) / 2
        return left, top, left + most, top + most

    def __call__(self, image: Any) -> Bytes:
        return resized(image, self.box(image.size), self.side)

    def place(self, size: tuple[int, int], at: tuple[int, int]) -> tuple[int, int]:
        """Where the pixel (y, x) of a picture so wide and so high is in what is made of it."""
        left, top, right, bottom = self.box(size)
        y, x = (at[0] + 0.5 - top) / (bottom - top), (at[1] + 0.5 - left) / (right - left)
        if not (0 <= y < 1 and 0 <= x < 1):
            raise ValueError(
                f"pixel {at} (y, x) is not in what the model sees of the picture, which is {size[1]} × {size[0]} "
                f"pixels high and wide: rows {math.ceil(top)} to {math.ceil(bottom) - 1}, columns {math.ceil(left)} to "
                f"{math.ceil(right) - 1}"
            )
        return int(y * self.side), int(x * self.side)


def anywhere(side: int, draw: np.random.Generator) -> Callable[[Any], Bytes]:
    """A rectangle of any place, of 8 to 100 % of the area and of a ratio from 3:4 to 4:3; mirrored every other time."""

    def cut(image: Any) -> Bytes:
        made = resized(image, rectangle(image.size, draw), side)
        return np.ascontiguousarray(made[:, :, ::-1]) if draw.random() < 0.5 else made

    return cut


def rectangle(size: tuple[int, int], draw: np.random.Generator) -> Box:
    width, height = size
    if (found := drawn(width, height, AREA, RATIO, draw)) is not None:
        return found
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))  # the middle, as square as can be
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def drawn(
    width: int, height: int, area: tuple[float, float], ratio: tuple[float, float], draw: np.random.Generator
) -> tuple[int, int, int, int] | None:
    """A rectangle inside another: left, top, right, bottom. area: least and most share of it; ratio: of width to
    height, even on a logarithmic scale. None, if ten do not fit."""
    for _ in range(10):
        pixels = width * height * draw.uniform(*area)
        shape = math.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = (int(draw.integers(0, room, endpoint=True)) for room in (width - w, height - h))
            return left, top, left + w, top + h
    return None


def resized(image: Any, box: Box, side: int) -> Bytes:
    """[3, S, S], of the part of a picture in the box."""
    from PIL.Image import Resampling

    if image.format == "JPEG":  # need not be decoded at more than twice the size; the box is in its own pixels then
        before = image.size
        least = side * 2 / min(box[2] - box[0], box[3] - box[1])
        if least < 1:
            image.draft("RGB", (math.ceil(before[0] * least), math.ceil(before[1] * least)))
            down, right = image.size[0] / before[0], image.size[1] / before[1]
            box = (box[0] * down, box[1] * right, box[2] * down, box[3] * right)
    colours = image.convert("RGB")
    made = colours.resize((side, side), Resampling.BICUBIC, box=box, reducing_gap=3.0)
    return np.ascontiguousarray(np.asarray(made).transpose(2, 0, 1))


# Chunks of batches, made by other processes


class Chunk(NamedTuple):
    """images: bytes [B, 3, S, S]; which: the numbers of the pictures; broken: those that cannot be read, and why.

    One tensor, which processes hand over in shared memory, and no other: to ask for one takes milliseconds.
    """

    images: Tensor
    which: Numbers
    broken: list[tuple[int, str]]


def training_chunk(pictures: Pictures, which: Numbers, side: int, seed: Sequence[int]) -> Chunk:
    """A random part of each picture; in the place of one that cannot be read stands the next of them that can."""
    broken: dict[int, str] = {}
    images, taken = [], []
    for place in range(len(which)):
        draw = np.random.default_rng([*seed, place])
        for i in np.roll(which, -place).tolist():
            made = None if i in broken else pictures.read(i, anywhere(side, draw))
            if isinstance(made, str):
                broken[i] = made
            elif made is not None:
                images.append(made)
                taken.append(i)
                break
        else:
            example, reason = next(iter(broken.items()))
            raise ValueError(
                f"none of {len(which)} pictures can be read, such as {pictures.entries[example]} ({reason})"
            )
    return Chunk(torch.from_numpy(np.stack(images)), np.array(taken, np.int64), list(broken.items()))


def evaluation_chunk(pictures: Pictures, which: Numbers, view: View) -> Chunk:
    """The view of each picture that can be read."""
    made = {int(i): pictures.read(int(i), view) for i in which}
    images = {i: image for i, image in made.items() if not isinstance(image, str)}
    whole = np.stack(list(images.values())) if images else np.empty((0, 3, view.side, view.side), np.uint8)
    broken = [(i, reason) for i, reason in made.items() if isinstance(reason, str)]
    return Chunk(torch.from_numpy(whole), np.array(list(images), np.int64), broken)


class Stream:
    """make(n), make(n + 1), ... by other processes and ahead of their time; what is made depends on the number alone.

    last: the number after the last one, where there is one. What is the only one left is made here.
    """

    def __init__(self, make: Callable[[int], Any], workers: int, last: int | None = None) -> None:
        self.make, self.workers, self.last = make, workers, last
        self.due: int | None = None
        self.coming: list[Iterator[Any]] = []
        # Held from outside: in a circle that is collected, a loader's queues end before it has told its processes to,
        # and it waits five seconds for each.
        self.end = weakref.finalize(self, self.coming.clear)

    def __call__(self, number: int) -> Any:
        if number != self.due:
            self.coming[:] = [iter(self.loader(number))]
            atexit.register(self.end)  # before the loader waits for its processes to end by themselves
        self.due = number + 1
        made = next(self.coming[0])
        if isinstance(made, Failed):
            raise made.error
        return made

    def loader(self, first: int) -> DataLoader[Any]:
        numbers: Any = itertools.count(first) if self.last is None else range(first, self.last)
        left = self.workers if self.last is None else self.last - first
        alone = self.last is not None and left == 1  # there is nothing to make ahead of its time
        return DataLoader(
            _Made(self.make),
            sampler=numbers,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=0 if alone else min(self.workers, left),  # to start a process takes long
            worker_init_fn=_leave_interrupts_to_the_first,
            generator=torch.Generator(),  # so that the training's own numbers are not used up
        )


class _Made(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __getitem__(self, number: int) -> Any:
        try:
            return self.make(number)
        except Exception as error:  # which the loader would wrap in a traceback's lines
            return Failed(error)


class Failed(NamedTuple):
    error: Exception


def _as_it_is(made: Any) -> Any:
    return made


def _leave_interrupts_to_the_first(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal, and the first finishes its step, for which it needs the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def workers_for(parts: int) -> int:
    """Of this machine's processors, the share of one of so many parts of a batch, which may be on several machines."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    here, all_ = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    return max(1, min(processors, MOST_WORKERS) * max(all_ // here, 1) // parts)


def normalised(x: Tensor) -> Tensor:
    """Colours from 0 to 1 as deviations from ImageNet's mean."""
    mean, deviation = (torch.tensor(t, device=x.device)[:, None, None] for t in (MEAN, DEVIATION))
    return (x - mean) / deviation
