"""Where a text comes from, as plain data: a known corpus, or files of the user's. Both give three splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from longshort.lab.data.corpus import CORPORA, corpus
from longshort.lab.data.splits import Splits, split, split_text
from longshort.lab.data.text import open_text
from longshort.serial import registered


@registered("CorpusSource")
@dataclass(frozen=True)
class CorpusSource:
    """enwik8 or text8: 90M bytes to train on, 5M for development, 5M for the test.

    path: the file, packed or not, or its folder; without one it is looked for in the cache, and else downloaded.
    """

    name: str
    path: Path | None = None

    def __post_init__(self) -> None:
        if self.name not in CORPORA:
            raise ValueError(f"there is no corpus {self.name!r}; there are {', '.join(CORPORA)}")

    def splits(self) -> Splits:
        text = open_text(corpus(self.name, self.path))
        return split(text, len(text) // 20, len(text) // 20)


@registered("FileSource")
@dataclass(frozen=True)
class FileSource:
    """A text file, or all files below a folder whose name matches, but for those in folders named in `without`.

    The last parts of the text are for development and test.
    """

    path: Path
    pattern: str = "*"
    without: tuple[str, ...] = ()
    dev_share: float = 0.05
    test_share: float = 0.05

    def splits(self) -> Splits:
        text = open_text(self.path, pattern=self.pattern, without=self.without)
        return split_text(text, self.dev_share, self.test_share)


Source = CorpusSource | FileSource
S = TypeVar("S")


def with_data_at(path: Path, source: S) -> S:
    """The same source, or task, with its files at `path`. A source may be one around another."""
    inner = getattr(source, "source", None)
    if inner is None and not hasattr(source, "path"):
        raise ValueError(f"{type(source).__name__} has no path that could be another one")
    changes = {"path": path} if inner is None else {"source": with_data_at(path, inner)}
    changed: S = replace(source, **changes)  # type: ignore[type-var]
    return changed
