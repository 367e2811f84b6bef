"""Pairs of papers of the ACL Anthology Network, one citing the other or not: Retrieval in the Long Range Arena.

The official pairs, or a reconstruction of the task from the same papers; figures on one say nothing about the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longshort.lab.data.labelled import LabelledPairs, LabelledSplits, Numbers, Sequences, digest
from longshort.lab.data.official import Official, lines, together, warn_if_other
from longshort.lab.data.perturb import perturbed_pairs
from longshort.serial import UNREADABLE, registered

AAN = Official(
    title="AAN",
    folder="aan",
    address="https://storage.googleapis.com/long-range-arena/lra_release.gz",
    put="new_aan_pairs.{train,eval,test}.tsv of its folder tsv_data",
    forms="those three files, or papers_first6k.jsonl and pairs_{train,eval,test}.tsv of the reconstruction; "
    "packed or not",
)
SPLITS = ("train", "eval", "test")
OFFICIAL = [f"new_aan_pairs.{split}.tsv" for split in SPLITS]
RECONSTRUCTION = ["papers_first6k.jsonl", *(f"pairs_{split}.tsv" for split in SPLITS)]
CHECKSUMS = {  # of the reconstruction
    "papers": "5ab20ec1f5f98085f6b68ab4752fc89479a62f4720f12243c5bd339692c61c60",
    "train": "24605ddf5724b4e7cbc0ff2b80117a09ac0625a47f60ecb71303b5b3d1bdf9f6",
    "eval": "a0b169cffd510c45e7f09f8ae45e2fe02e9cbd0f9c011f7b0e19666c0aef057c",
    "test": "ece43b738c0e8bfd20460d3bcecd67a24a5fcb4f4db5da856d6868ba956a4d68",
}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}

Pairs = tuple[Numbers, Numbers]  # [I, 2] documents, [I] labels


@registered("Aan")
@dataclass(frozen=True)
class Aan:
    """Pairs with label 1 where citations connect the papers; tokens are bytes + 1, none cut. All splits share one
    store of documents, each of which is in it once."""

    path: Path | None = None

    @property
    def classes(self) -> int:
        return 2

    @property
    def name(self) -> str:
        """What results on these files are called: AAN, or AAN reconstruction."""
        return self._found()[0]

    def splits(self) -> LabelledSplits[LabelledPairs]:
        name, files = self._found()
        documents, each = READERS[name](files)
        train, dev, test = (LabelledPairs(documents, pairs, labels) for pairs, labels in each)
        return LabelledSplits(train, dev, test, perturbed_pairs())

    def _found(self) -> tuple[str, list[Path]]:
        where = AAN.home(self.path)
        for folder in (where, where / "tsv_data"):
            if files := together(folder, OFFICIAL):
                return "AAN", files
        if files := together(where, RECONSTRUCTION):
            return "AAN reconstruction", files
        raise AAN.missing(where)


def _official(files: list[Path]) -> tuple[Sequences, list[Pairs]]:
    """A line is label, id, id, text, text. Most papers come many times: a text is kept once for its id."""
    known: dict[tuple[bytes, bytes], int] = {}

    def document(paper: bytes, text: bytes) -> int:
        return known.setdefault((paper, text), len(known))

    def of_line(fields: list[bytes]) -> tuple[int, int]:
        first, second, first_text, second_text = fields
        return document(first, first_text), document(second, second_text)

    pairs = [_pairs(path, 4, of_line) for path in files]
    return Sequences.of_bytes(text for _, text in known), pairs


def _reconstruction(files: list[Path]) -> tuple[Sequences, list[Pairs]]:
    papers, *rest = files
    texts = _papers(papers)
    numbers = {paper: number for number, paper in enumerate(texts)}

    def of_line(fields: list[bytes]) -> tuple[int, int]:
        for paper in fields:
            if paper not in numbers:
                raise ValueError(f"paper {paper.decode(errors='replace')} is not in {papers}")
        return numbers[fields[0]], numbers[fields[1]]

    documents, pairs = Sequences.of_bytes(texts.values()), [_pairs(path, 2, of_line) for path in rest]
    found = {"papers": documents.fingerprint()} | {s: digest(*each) for s, each in zip(SPLITS, pairs, strict=True)}
    counts = {"papers": len(documents)} | {s: len(labels) for s, (_, labels) in zip(SPLITS, pairs, strict=True)}
    warn_if_other("the known AAN reconstruction", papers.parent, found, CHECKSUMS, counts)
    return documents, pairs


def _papers(path: Path) -> dict[bytes, bytes]:
    """Texts by id."""
    texts: dict[bytes, bytes] = {}
    for number, line in enumerate(lines(path), 1):
        try:
            paper = json.loads(line)
            name, text = paper["id"].encode(), paper["text"].encode()
        except UNREADABLE as error:
            raise ValueError(f'{path}, line {number}: expected {{"id": ..., "text": ...}}') from error
        if name in texts:
            raise ValueError(f"{path}, line {number}: paper {paper['id']} comes a second time")
        texts[name] = text
    return texts


def _pairs(path: Path, count: int, of_line: Callable[[list[bytes]], tuple[int, int]]) -> Pairs:
    """Of lines that have a label and `count` more fields. Texts are taken as they are: there is no quoting."""
    pairs, labels = [], []
    for number, line in enumerate(lines(path), 1):
        label, *fields = line.split(b"\t", count)
        if label not in LABELS or len(fields) != count:
            raise ValueError(
                f"{path}, line {number}: expected 0 or 1 and {count} more fields, tabs between them; "
                f"found {line[:40].decode(errors='replace')!r} and {len(fields)} tabs"
            )
        try:
            pairs.append(of_line(fields))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        labels.append(LABELS[label])
    if not labels:
        raise ValueError(f"{path} has no pairs")
    return np.array(pairs, np.int64), np.array(labels, np.int64)


READERS = {"AAN": _official, "AAN reconstruction": _reconstruction}
