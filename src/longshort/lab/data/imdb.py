"""Reviews of films from IMDb, liked or not: the Text task of the Long Range Arena, read byte by byte.

Whatever form the reviews come in, they stand in one order: by label, then by text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longshort.lab.data.labelled import Labelled, LabelledSplits, Numbers, Sequences
from longshort.lab.data.official import Official, from_extra, lines, members, together, warn_if_other
from longshort.lab.data.perturb import perturbed_texts
from longshort.serial import UNREADABLE, registered

IMDB = Official(
    title="IMDb",
    folder="imdb",
    address="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    put="it, or the folder aclImdb that is in it,",
    forms="aclImdb_v1.tar.gz, aclImdb, a folder with train.jsonl and test.jsonl, packed or not, "
    "or with Hugging Face's train-*.parquet and test-*.parquet",
)
CHECKSUMS = {
    "train": "32dd2e951ac183420ff79c3486a0cf89e4111073856402768b15b302d52ea0e6",
    "test": "3833c8b6f0b56f4fcce9e4d3612a555cc1ded60a0d97cb7539601f9f9daa35a8",
}
SENTIMENTS = {"neg": 0, "pos": 1}

Review = tuple[str, int, bytes]  # split, label, text


@registered("Imdb")
@dataclass(frozen=True)
class Imdb:
    """25,000 reviews to train on and 25,000 for the test, half of each liked; tokens are bytes + 1, none cut.

    held_out: the share of the training set that becomes dev. With 0 dev is the test set itself, which is what the
    Long Range Arena and the paper do: they choose the checkpoint on the test set. With 0.1 the choice is honest.
    """

    path: Path | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out}, not a share of the training set from 0 to below 1")

    @property
    def name(self) -> str:
        return "IMDb, chosen on held-out reviews" if self.held_out else "IMDb, chosen on the test set"

    @property
    def classes(self) -> int:
        return 2

    def splits(self) -> LabelledSplits[Labelled]:
        where = IMDB.home(self.path)
        parts = _parts(where)
        found = {name: part.fingerprint() for name, part in parts.items()}
        warn_if_other(
            "the official IMDb set", where, found, CHECKSUMS, {name: len(part) for name, part in parts.items()}
        )
        train, test = parts["train"], parts["test"]
        if not self.held_out:
            return LabelledSplits(train, test, test, perturbed_texts())
        dev = _held_out(train, self.held_out)
        rest = np.setdiff1d(np.arange(len(train)), dev)
        return LabelledSplits(train.take(rest), train.take(dev), test, perturbed_texts())


def _parts(where: Path) -> dict[str, Labelled]:
    reviews: dict[str, list[tuple[int, bytes]]] = {"train": [], "test": []}
    for split, label, text in _reviews(where):
        reviews[split].append((label, text))
    for split, each in reviews.items():
        if not each:
            raise ValueError(f"{where} has no {split} reviews")
        each.sort()
    return {
        split: Labelled(Sequences.of_bytes(text for _, text in each), np.array([label for label, _ in each], np.int64))
        for split, each in reviews.items()
    }


def _held_out(train: Labelled, share: float) -> Numbers:
    """Of each label the share of reviews whose checksums come first: chance that is the same on every machine and
    in every version of numpy, and that keeps equal reviews on one side."""
    checksums = np.array([hashlib.sha256(train.sequences[i].tobytes()).hexdigest() for i in range(len(train))])
    chosen = []
    for label in np.unique(train.labels):
        items = np.flatnonzero(train.labels == label)
        chosen.append(items[checksums[items].argsort(kind="stable")][: round(share * len(items))])
    if not all(map(len, chosen)):
        raise ValueError(f"held_out {share} of {len(train):,} training reviews leaves a label without any")
    return np.sort(np.concatenate(chosen))


def _reviews(where: Path) -> Iterator[Review]:
    """From the first form that is there."""
    if where.is_file():
        return _of_tar(where)
    for folder in (where, where / "aclImdb"):
        if (folder / "train" / "pos").is_dir():
            return _of_folder(folder)
    if archive := together(where, ["aclImdb_v1.tar.gz"]):
        return _of_tar(archive[0])
    if files := together(where, ["train.jsonl", "test.jsonl"]):
        return _of_lines(files)
    for folder in (where, where / "plain_text", where / "data"):
        if any(folder.glob("train-*.parquet")):
            return _of_parquet(folder)
    raise IMDB.missing(where)


def _of_folder(folder: Path) -> Iterator[Review]:
    for split in ("train", "test"):
        for sentiment, label in SENTIMENTS.items():
            part = folder / split / sentiment
            if not part.is_dir():
                raise FileNotFoundError(f"{part} is not there: aclImdb has train and test with pos and neg in each")
            for path in part.glob("*.txt"):
                yield split, label, path.read_bytes()


def _of_tar(path: Path) -> Iterator[Review]:
    for match, text in members(path, re.compile(r"(?:\./)?aclImdb/(train|test)/(pos|neg)/[^/]+\.txt")):
        yield match[1], SENTIMENTS[match[2]], text


def _of_lines(files: list[Path]) -> Iterator[Review]:
    for split, path in zip(("train", "test"), files, strict=True):
        for number, line in enumerate(lines(path), 1):
            try:
                review = json.loads(line)
                text, label = review["text"].encode(), _label(review["label"])
            except UNREADABLE as error:
                raise ValueError(f'{path}, line {number}: expected {{"text": ..., "label": 0 or 1}}') from error
            yield split, label, text


def _of_parquet(folder: Path) -> Iterator[Review]:
    parquet, arrow = from_extra("pyarrow.parquet", "pyarrow"), from_extra("pyarrow", "pyarrow")
    for split in ("train", "test"):
        for path in sorted(folder.glob(f"{split}-*.parquet")):
            try:
                table = parquet.ParquetFile(path).read(columns=["text", "label"])
                texts = [text.encode() for text in table.column("text").to_pylist()]
                labels = [_label(label) for label in table.column("label").to_pylist()]
            except (arrow.ArrowException, ValueError, KeyError, AttributeError) as error:
                raise ValueError(f"{path}: expected a parquet file with columns text and label (0 or 1)") from error
            yield from ((split, label, text) for label, text in zip(labels, texts, strict=True))


def _label(value: object) -> int:
    if value not in (0, 1):
        raise ValueError(f"label {value!r} is neither 0 nor 1")
    return int(value == 1)
