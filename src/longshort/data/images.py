"""Pictures with labels, read and cut on the way: batches of a square size, by many threads and ahead of their time.

B pictures of a batch, S side of what is cut out of each.
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.data.archive import Entry, entries
from longshort.data.labelled import Numbers
from longshort.data.official import from_extra

logger = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, by colour
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of what is cut out to train on, as all of ImageNet's recipes have it


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures and what they show. One that cannot be read is named, counted, and from then on left out."""

    entries: Sequence[Entry]
    labels: Numbers
    broken: dict[int, str] = field(default_factory=dict)  # by number: why

    def __len__(self) -> int:
        return len(self.entries)

    def read(self, i: int, cut: Callable[[Any], Bytes]) -> Bytes | None:
        """What `cut` makes of picture i; nothing where it cannot be read."""
        if i in self.broken:
            return None
        image = from_extra("PIL.Image", "pillow")
        try:
            with image.open(io.BytesIO(self.entries[i].read())) as opened:
                return cut(opened)
        except Exception as error:  # of damaged files, decoders raise nearly everything
            with _COUNTING:
                new = i not in self.broken
                self.broken[i] = str(error)
            if new:
                logger.warning(
                    "skipped %s, which cannot be read (%s); %d so far", self.entries[i], error, len(self.broken)
                )
            return None

    def fingerprint(self) -> str:
        """Of names, sizes and labels; reading a million pictures would take too long."""
        made = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for entry in self.entries:
            made.update(f"{entry.name} {entry.size}\n".encode())
        return made.hexdigest()


_COUNTING = threading.Lock()


@dataclass(frozen=True, eq=False)
class PictureSplits:
    train: Pictures
    dev: Pictures
    classes: tuple[str, ...]

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.train.fingerprint()}{self.dev.fingerprint()}".encode()).hexdigest()


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
    if unknown := sorted({entry.kind for entry in found} - set(number)):
        some = ", ".join(repr(kind) for kind in unknown[:3])
        raise ValueError(f"{found[0].file} has classes that the training set has not: {some} ({len(unknown)} of them)")
    return Pictures(found, np.array([number[entry.kind] for entry in found], np.int64))


# What is cut out of a picture


def centre(side: int, share: float) -> Callable[[Any], Bytes]:
    """The middle: of the largest square, a square of `share` of its side, made `side` wide."""

    def cut(image: Any) -> Bytes:
        most = min(image.size) * share
        left, top = (image.size[0] - most) / 2, (image.size[1] - most) / 2
        return resized(image, (left, top, left + most, top + most), side)

    return cut


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


# Batches


class Ahead:
    """Calls a function for the numbers to come while the one asked for is used. It must depend on its number alone."""

    def __init__(self, make: Callable[[int], Any], ahead: int) -> None:
        self.make, self.ahead = make, ahead
        self.coming: dict[int, Future[Any]] = {}
        self.callers = ThreadPoolExecutor(max(ahead, 1), thread_name_prefix="batches")

    def __call__(self, number: int) -> Any:
        wanted = range(number, number + 1 + self.ahead)
        for past in [n for n in self.coming if n not in wanted]:
            self.coming.pop(past).cancel()
        for n in wanted:
            if n not in self.coming:
                self.coming[n] = self.callers.submit(self.make, n)
        return self.coming.pop(number).result()


class Readers:
    """Threads that read pictures, shared by all of a process: decoders of pictures let others work meanwhile."""

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="pictures")

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        return list(self.pool.map(work, *items))


READERS = Readers()


def training_batch(
    pictures: Pictures, which: Numbers, others: Numbers, side: int, seed: Sequence[int]
) -> tuple[Bytes, Numbers]:
    """[B, 3, S, S] and labels [B]: a random part of each. others: in the place of those that cannot be read."""

    def one(place: int, i: int) -> tuple[Bytes, int]:
        draw = np.random.default_rng([*seed, place])
        for each in (i, *np.roll(others, -place)):
            if (made := pictures.read(int(each), anywhere(side, draw))) is not None:
                return made, int(pictures.labels[each])
        raise ValueError(f"none of {len(others) + 1} pictures can be read, such as {pictures.entries[i]}")

    made = READERS.map(one, range(len(which)), which)
    return np.stack([image for image, _ in made]), np.array([label for _, label in made], np.int64)


def judged_batch(pictures: Pictures, which: Numbers, side: int, share: float) -> tuple[Bytes, Numbers]:
    """[B, 3, S, S] and their numbers [B]: the middle of each that can be read."""
    cut = centre(side, share)
    made = READERS.map(lambda i: pictures.read(int(i), cut), which)
    kept = [i for i, image in zip(which, made, strict=True) if image is not None]
    images = [image for image in made if image is not None]
    whole = np.stack(images) if images else np.empty((0, 3, side, side), np.uint8)
    return whole, np.array(kept, np.int64)
