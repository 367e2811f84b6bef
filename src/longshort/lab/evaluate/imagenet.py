"""A vision model on ImageNet's validation set and on the sets that were made to find its weaknesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longshort.lab.data.archive import of_folder
from longshort.lab.data.benchmarks import CORRUPTIONS, SEVERITIES, Benchmarks
from longshort.lab.data.corrupt import Corrupted, package
from longshort.lab.data.images import Middle, Pictures, View, in_order, labelled
from longshort.lab.evaluate.evaluator import Share
from longshort.lab.evaluate.measures import (
    corruption_errors,
    mean_corruption_error,
    right_among,
    right_of_many,
    right_of_nine,
)
from longshort.lab.evaluate.pictures import PictureLabels

Set = Literal["val", "real", "v2", "c", "a", "r", "nine"]
SETS: tuple[Set, ...] = ("val", "real", "v2", "c", "a", "r", "nine")
ROBUSTNESS: tuple[Set, ...] = ("val", "c", "a", "r", "nine")  # of the paper's table
NAMES = {
    "validation": "validation set",
    "val": "ImageNet",
    "real": "ReaL",
    "v2": "V2",
    "a": "ImageNet-A",
    "r": "ImageNet-R",
    "original": "ImageNet-9, original",
    "mixed_same": "ImageNet-9, mixed-same",
    "mixed_rand": "ImageNet-9, mixed-rand",
}
PAPER = {  # parameters in M, top-1, mCE, A, R, mixed-same, mixed-rand
    "ResNet-50": (25.6, 76.2, 78.9, 6.2, 35.3, 87.1, 81.6),
    "DeiT-S": (22.1, 79.8, 57.1, 19.0, 41.9, 89.1, 84.2),
    "CvT-13": (20, 81.6, 59.6, 25.4, 42.9, 90.5, 85.7),
    "CvT-21": (32, 82.5, 56.2, 31.1, 42.6, 90.5, 85.0),
    "CvT*-LS-13": (20.3, 81.9, 58.7, 27.0, 42.6, 90.7, 85.6),
    "CvT*-LS-21": (32.1, 82.7, 55.2, 29.3, 45.0, 91.5, 85.8),
}


def on_sets(
    sets: Sequence[Set], benchmarks: Benchmarks, view: View, batch: int, classes: int | None = None
) -> Iterator[PictureLabels]:
    """The sets in their order. classes: of the model; the validation set is needed for all, since it names them."""
    pictures, names = benchmarks.validation()
    check_classes(classes, names)
    for name in sets:
        if name == "val":
            yield PictureLabels(name, pictures, view, batch)
        elif name == "real":
            lists = np.fromiter(benchmarks.real(pictures, len(names)), dtype=object, count=len(pictures))
            yield PictureLabels(name, pictures, view, batch, right_of_many, lists)
        elif name == "v2":
            yield PictureLabels(name, benchmarks.v2(names), view, batch)
        elif name == "nine":
            variants, nine = benchmarks.nine(len(names))
            for variant, some in variants.items():
                yield PictureLabels(variant, some, view, batch, partial(right_of_nine, nine=nine))
        elif name == "c":
            for corruption, severities in benchmarks.corrupted(names).items():
                for severity, some in severities.items():
                    yield PictureLabels(f"{corruption} {severity}", some, view, batch)
        else:
            some, chosen = benchmarks.subset(name, names)
            yield PictureLabels(name, some, view, batch, partial(right_among, classes=chosen))


def corrupted_on_the_way(
    folder: Path, view: Middle, batch: int, classes: int | None = None, names: Sequence[str] = CORRUPTIONS
) -> Iterator[PictureLabels]:
    """Pictures of one's own, a folder for each class, as they are and with ImageNet-C's corruptions."""
    files = of_folder(folder)
    kinds = in_order({entry.kind for entry in files})
    check_classes(classes, kinds)
    package()  # before the work
    pictures = labelled(files, kinds)
    yield PictureLabels("as they are", pictures, view, batch)
    for name in names:
        for severity in SEVERITIES:
            yield PictureLabels(f"{name} {severity}", pictures, Corrupted(name, severity, view), batch)


def check_classes(classes: int | None, names: Sequence[str]) -> None:
    if classes not in (None, len(names)):
        raise ValueError(f"the model has {classes} classes, and the pictures have {len(names)}: {names[0]}, ...")


@dataclass(frozen=True)
class Robustness:
    """Accuracy by set; of corruptions, the share of errors at each severity; how many pictures could not be read."""

    accuracy: dict[str, float]
    corruptions: dict[str, list[float]]
    broken: int = 0

    @classmethod
    def of(cls, results: Mapping[str, Mapping[str, Share]], pictures: Sequence[Pictures] = ()) -> Robustness:
        """What the evaluators of this file gave. pictures: those that they read."""
        accuracy: dict[str, float] = {}
        corruptions: dict[str, list[float]] = {}
        for name, shares in results.items():
            corruption, _, severity = name.rpartition(" ")
            if severity.isdigit() and corruption in CORRUPTIONS:
                corruptions.setdefault(corruption, []).append(1 - shares["accuracy"].mean)
            else:
                accuracy[name] = shares["accuracy"].mean
        return cls(accuracy, corruptions, sum(len(p.broken) for p in {id(p): p for p in pictures}.values()))

    @property
    def mce(self) -> float | None:
        return mean_corruption_error(self.corruptions)

    def facts(self) -> dict[str, Any]:
        relative = corruption_errors(self.corruptions)
        errors = {name: {"errors": each, "corruption_error": relative[name]} for name, each in self.corruptions.items()}
        return {"accuracy": self.accuracy, "corruptions": errors, "mce": self.mce, "broken_pictures": self.broken}

    def row(self) -> list[float | None]:
        """The columns of the paper's table."""
        return [
            self.accuracy.get("val"),
            self.mce,
            *(self.accuracy.get(name) for name in ("a", "r", "mixed_same", "mixed_rand")),
        ]
