"""Sets that are generated: drawn in chunks, each from a seed of its own, kept in the cache, and checked.

A set is one Labelled: its first items are the test set, then come the development set and the training set, so that
how much there is to train on changes nothing else. T tokens, S sequences.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from errno import EINVAL
from itertools import count
from pathlib import Path

import numpy as np

from longshort.lab.data.files import cache_folder
from longshort.lab.data.labelled import Labelled, LabelledSplits, Numbers, Sequences
from longshort.lab.data.progress import progress_bar
from longshort.lab.runs.files import whole_file
from longshort.lab.runs.lock import folder_lock
from longshort.serial import registered

logger = logging.getLogger(__name__)


class Draws:
    """Whole numbers from a seed, the same on every machine: of NumPy's random numbers only the raw words of a bit
    generator are promised to stay as they are, so nothing else is used."""

    def __init__(self, seed: int, chunk: int) -> None:
        self._words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(chunk,)))

    def below(self, most: int, *shape: int) -> Numbers:
        """Each of 0 ... most - 1 as likely as the others, but for 1 in 2³² / most."""
        words = self._words.random_raw(int(np.prod(shape, dtype=np.int64)))
        words >>= np.uint64(32)
        words *= np.uint64(most)
        words >>= np.uint64(32)
        return words.view(np.int64).reshape(shape)


Chunk = Callable[[Draws], Labelled]  # some items, as many as it likes


@registered("Counts")
@dataclass(frozen=True)
class Counts:
    """How many items there are of each kind."""

    train: int
    dev: int
    test: int

    def __post_init__(self) -> None:
        if min(self.train, self.dev, self.test) < 1:
            raise ValueError(f"train, dev and test must be at least 1, got {self.train}, {self.dev}, {self.test}")

    @property
    def all(self) -> int:
        return self.train + self.dev + self.test

    def split(self, items: Labelled) -> LabelledSplits[Labelled]:
        """The first are for the test, the next to choose by, the others to train on."""
        first = self.test + self.dev
        return LabelledSplits(
            train=part(items, first, self.all), dev=part(items, self.test, first), test=part(items, 0, self.test)
        )


def part(items: Labelled, start: int, stop: int) -> Labelled:
    """Those from start to before stop; a view."""
    starts = items.sequences.starts[start : stop + 1]
    tokens = items.sequences.tokens[starts[0] : starts[-1]]
    return Labelled(Sequences(tokens, starts - starts[0]), items.labels[start:stop])


def joined(parts: Iterable[Labelled]) -> Labelled:
    """One after the other."""
    parts = list(parts)
    tokens = np.concatenate([items.sequences.tokens for items in parts])
    starts = np.concatenate([[0], *(items.lengths for items in parts)]).cumsum()
    return Labelled(Sequences(tokens, starts), np.concatenate([items.labels for items in parts]))


def collect(chunk: Chunk, items: int, seed: int, *, doing: str, length: int) -> Labelled:
    """The first items of chunk 0, chunk 1 and so on, none twice: how many there are changes none of them.

    length: tokens of an item, about, of which the progress bar makes bytes.
    """
    found: list[Labelled] = []
    seen: set[bytes] = set()
    missing = items
    with progress_bar(doing, items * length) as tell:
        for number in count():
            fresh = _fresh(chunk(Draws(seed, number)), seen)
            found.append(part(fresh, 0, min(len(fresh), missing)))
            missing -= len(found[-1])
            tell((items - missing) * length)
            if not missing:
                break
    return joined(found)


def _fresh(items: Labelled, seen: set[bytes]) -> Labelled:
    """Those not seen before, which from now on are."""
    keep = []
    for i in range(len(items)):
        key = hashlib.blake2b(items.sequences[i].tobytes(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            keep.append(i)
    return items if len(keep) == len(items) else items.take(np.array(keep, np.int64))


def cached(name: str, make: Callable[[], Labelled], checksum: str | None = None) -> Labelled:
    """What `make` makes, which is asked once: then it comes from the file lra/`name`.npz in the cache.

    checksum: the fingerprint that the set must have, where it is known. A damaged file is made anew.
    """
    path = cache_folder() / "lra" / f"{name}.npz"
    with folder_lock(path.parent):
        items = _read(path, checksum)
        if items is None:
            items = make()
            check(name, items, checksum)
            _write(path, items)
    return items


def check(name: str, items: Labelled, checksum: str | None) -> None:
    """Refuses a set of another content than everyone else has under this name."""
    if checksum is not None and (found := items.fingerprint()) != checksum:
        raise ValueError(
            f"{name} was generated with checksum {found}, expected {checksum}: results would compare with nobody's. "
            f"NumPy {np.__version__} or this machine counts in another way; please report it"
        )


def _write(path: Path, items: Labelled) -> None:
    with whole_file(path) as file:
        np.savez(
            file,
            bytes=(items.sequences.tokens - 1).astype(np.uint8),  # [T], of tokens 1 to 256
            lengths=items.lengths.astype(np.int32),  # [S]
            labels=items.labels.astype(np.uint8),  # [S]
            checksum=np.array(items.fingerprint()),
        )


def _read(path: Path, checksum: str | None) -> Labelled | None:
    """None where there is no such file, or where it is damaged: it is then removed."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            starts = np.concatenate([[0], data["lengths"]]).cumsum(dtype=np.int64)
            tokens = data["bytes"].astype(np.int16)
            tokens += 1
            items = Labelled(Sequences(tokens, starts), data["labels"].astype(np.int64))
            if items.fingerprint() == (checksum or str(data["checksum"])):
                return items
            reason = "its checksum is another"
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno not in (None, EINVAL):  # the disk's fault, not the content's
            raise
        reason = str(error)
    logger.warning("%s is damaged (%s): it is removed and made anew", path, reason)
    path.unlink()
    return None
