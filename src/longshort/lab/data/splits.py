"""A text in three parts: train, then dev, then test.

N bytes of text; dev and test are its last bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Text = NDArray[np.uint8]  # [N], often a read-only memmap
PIECE, PIECES = 1 << 20, 256


@dataclass(frozen=True, eq=False)
class Splits:
    train: Text
    dev: Text
    test: Text

    def fingerprint(self) -> str:
        """Tells whether a text is still the same: a checksum of all of it, or, where that would take long, of the
        lengths and of pieces at even distances."""
        made = hashlib.sha256()
        for text in (self.train, self.dev, self.test):
            made.update(len(text).to_bytes(8, "little"))
            step = max(PIECE, -(-len(text) // PIECES))
            for start in range(0, len(text), step):
                made.update(text[start : start + PIECE].tobytes())
        return made.hexdigest()


def split(text: Text, dev: int, test: int) -> Splits:
    """The last `test` bytes, the `dev` bytes before them, and for training all before those."""
    train = len(text) - dev - test
    if dev < 0 or test < 0:
        raise ValueError(f"dev and test must not be negative, got dev {dev}, test {test}")
    if train < 1:
        raise ValueError(f"text of {len(text):,} bytes has nothing to train on after {dev:,} dev and {test:,} test")
    return Splits(text[:train], text[train : train + dev], text[train + dev :])


def split_text(text: Text, dev_share: float = 0.05, test_share: float = 0.05) -> Splits:
    """As split, with dev and test as shares of the text."""
    return split(text, _bytes_of(text, "dev", dev_share), _bytes_of(text, "test", test_share))


def _bytes_of(text: Text, name: str, share: float) -> int:
    if not 0 <= share < 1:
        raise ValueError(f"{name} share must be at least 0 and less than 1, got {share}")
    size = int(len(text) * share)
    if share and not size:
        raise ValueError(f"text of {len(text):,} bytes is too short for a {name} share of {share}: 0 bytes")
    return size
