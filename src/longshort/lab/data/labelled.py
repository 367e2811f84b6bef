"""Labelled sequences of any lengths, in memory: one by one, or in pairs of documents, as padded batches.

B items of a batch, L length, T tokens of all sequences together, S sequences, I items. Token 0 pads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Tokens = NDArray[np.signedinteger[Any]]  # int16, or int32 where that is too small
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sequence i is tokens[starts[i] : starts[i + 1]]: no sequence knows of another."""

    tokens: Tokens  # [T], each at least 1
    starts: Numbers  # [S + 1]

    @classmethod
    def of(cls, each: Iterable[ArrayLike], dtype: DTypeLike = np.int16) -> Sequences:
        """From one array of tokens for each sequence. dtype: int32 where there are more tokens than int16 counts."""
        arrays = [np.asarray(tokens, dtype=dtype) for tokens in each]
        lengths = np.array([0, *(len(tokens) for tokens in arrays)], dtype=np.int64)
        return cls(np.concatenate(arrays or [np.empty(0, dtype)]), lengths.cumsum())

    @classmethod
    def of_bytes(cls, each: Iterable[bytes]) -> Sequences:
        """Each byte is the token byte + 1."""
        return cls.of(np.frombuffer(text, np.uint8).astype(np.int16) + 1 for text in each)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.tokens[self.starts[i] : self.starts[i + 1]]

    @cached_property
    def lengths(self) -> Numbers:
        return np.diff(self.starts)

    def padded(self, items: Sequence[int] | Numbers, most: int, multiple: int = 1, *, closed: bool = False) -> Tokens:
        """[B, L]: each cut to its first `most` tokens; L is the length of the longest, rounded up to a multiple of
        `multiple`, but no more than `most`. closed: what is cut still ends with its last token."""
        longest = max(int(self.lengths[items].max(initial=1)), 1)
        longest = min(-(-longest // multiple) * multiple, most)
        batch = np.zeros((len(items), longest), self.tokens.dtype)
        for row, i in zip(batch, items, strict=True):
            tokens = self[int(i)]
            row[: len(tokens)] = tokens[:most]
            if closed and len(tokens) > most:
                row[-1] = tokens[-1]
        return batch

    def fingerprint(self) -> str:
        return digest(self.tokens, self.starts)


@dataclass(frozen=True, eq=False)
class Labelled:
    """A label for each sequence."""

    sequences: Sequences
    labels: Numbers  # [I]

    def __post_init__(self) -> None:
        if len(self.sequences) != len(self.labels):
            raise ValueError(f"{len(self.sequences)} sequences have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> Numbers:
        return self.sequences.lengths

    def take(self, items: Sequence[int] | Numbers) -> Labelled:
        """Some of them, in the order given."""
        sequences = Sequences.of((self.sequences[int(i)] for i in items), self.sequences.tokens.dtype)
        return Labelled(sequences, self.labels[items])

    def fingerprint(self) -> str:
        return digest(self.sequences.tokens, self.sequences.starts, self.labels)


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """A label for each pair of documents; a document may be in many pairs."""

    documents: Sequences
    pairs: Numbers  # [I, 2]: which documents
    labels: Numbers  # [I]

    def __post_init__(self) -> None:
        if self.pairs.shape != (len(self.labels), 2):
            raise ValueError(f"pairs of shape {self.pairs.shape} have {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> Numbers:
        """[I]: of the longer one of each pair."""
        longer: Numbers = self.documents.lengths[self.pairs].max(axis=1, initial=0)
        return longer

    def fingerprint(self) -> str:
        return digest(self.documents.tokens, self.documents.starts, self.pairs, self.labels)


Items = TypeVar("Items", Labelled, LabelledPairs)


@dataclass(frozen=True, eq=False)
class LabelledSplits(Generic[Items]):
    """What to train on, to choose by, and to test with. variants: what else the test set is turned into, by name."""

    train: Items
    dev: Items
    test: Items
    variants: Mapping[str, Callable[[Items], Items]] = field(default_factory=dict)

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(s.fingerprint() for s in (self.train, self.dev, self.test)).encode()).hexdigest()


class LabelledSource(Protocol[Items]):
    """A frozen dataclass that says where a data set comes from."""

    @property
    def name(self) -> str:
        """What results on it are called."""
        ...

    @property
    def classes(self) -> int: ...

    def splits(self) -> LabelledSplits[Items]: ...


def longest_tenth(items: Labelled) -> Labelled:
    """By their lengths before they are cut, in their order."""
    count = -(-len(items) // 10)
    return items.take(np.sort(np.argsort(items.lengths, kind="stable")[len(items) - count :]))


def digest(*arrays: NDArray[Any]) -> str:
    """A checksum of content, types and shapes, the same on every machine."""
    made = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        made.update(f"{little.dtype.str}{little.shape}".encode())
        made.update(little.data if little.size else b"")
    return made.hexdigest()
