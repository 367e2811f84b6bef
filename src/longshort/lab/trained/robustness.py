"""A vision model judged by ImageNet's validation set and by the sets that were made to find its weaknesses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from longshort.lab.data.archive import of_folder
from longshort.lab.data.benchmarks import CORRUPTIONS, SEVERITIES, Benchmarks
from longshort.lab.data.corrupt import Corrupted, package
from longshort.lab.data.images import Middle, Pictures, View, in_order, labelled
from longshort.lab.trained import find_model, find_run, load_trained
from longshort.models import CvT, ViL
from longshort.models.pyramid import Pyramid
from longshort.lab.tasks.images import ImageClassification, scores_of
from longshort.lab.evaluate.measures import (
    corruption_errors,
    found,
    found_among,
    found_of_many,
    found_of_nine,
    mean_corruption_error,
)
from longshort.lab.train.processes import Processes

Measure = Callable[[Any, Any], Any]  # scores [B, K] and labels [B] → whether each is found, without what does not count
Set = Literal["val", "real", "v2", "c", "a", "r", "nine"]
SETS: tuple[Set, ...] = ("val", "real", "v2", "c", "a", "r", "nine")
ROBUSTNESS: tuple[Set, ...] = ("val", "c", "a", "r", "nine")  # of the paper's table
NAMES = {
    "dev": "validation set",
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


@dataclass
class Found:
    """Shares of labels found, by set; of corruptions, the share of errors at each severity; how many pictures could not
    be read."""

    accuracy: dict[str, float] = field(default_factory=dict)
    corruptions: dict[str, list[float]] = field(default_factory=dict)
    broken: int = 0

    @property
    def mce(self) -> float | None:
        return mean_corruption_error(self.corruptions)

    def facts(self) -> dict[str, Any]:
        relative = corruption_errors(self.corruptions)
        errors = {name: {"errors": each, "corruption_error": relative[name]} for name, each in self.corruptions.items()}
        return {"accuracy": self.accuracy, "corruptions": errors, "mce": self.mce, "broken_pictures": self.broken}


def is_vision(name: str) -> bool:
    """Whether a name is that of a vision model: a run of pictures, a saved model, or a released file."""
    if Path(name).suffix in (".pth", ".pt"):
        return True
    try:
        run = find_run(name)
    except ValueError:
        return False
    if run is not None:
        return isinstance(run.task, ImageClassification)
    config = Path(name) / "config.json"
    return config.is_file() and "stages" in json.loads(config.read_text())


def load_vision(name: str, device: torch.device, which: Literal["best", "last"]) -> tuple[Pyramid, View]:
    """The model, and how it likes to see pictures."""
    if Path(name).suffix in (".pth", ".pt"):
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name} is not there")
        released = ViL.from_released(name)
        return released.to(device).eval(), view_of(released)
    if (run := find_run(name)) is not None:
        _, model = load_trained(name, device, which)
        assert isinstance(model, Pyramid) and isinstance(run.task, ImageClassification)
        return model, run.task.view
    path = find_model(name, which)
    kernels = "kernel" in json.loads((Path(path) / "config.json").read_text())["stages"][0]
    made: Pyramid = (CvT if kernels else ViL).from_pretrained(path)
    return made.to(device).eval(), view_of(made)


def view_of(model: Pyramid) -> Middle:
    """As the paper judges: at 224 the middle seven eighths, at larger sizes the whole square."""
    side = model.config.size[0] if isinstance(model, ViL) else 224
    return Middle(side, 0.875 if side <= 224 else 1.0)


@dataclass(frozen=True)
class Judge:
    """A model, how it sees pictures, and how far it is: tell(set, done, of)."""

    model: nn.Module
    view: View
    processes: Processes
    at_once: int = 128
    tell: Callable[[str, int, int], Any] = lambda name, done, of: None

    def share(
        self, name: str, pictures: Pictures, measure: Measure = found, labels: Any = None, view: View | None = None
    ) -> float:
        """Of all processes. labels: other than the pictures' own, one for each."""
        labels = pictures.labels if labels is None else labels
        index, count = self.processes.index, self.processes.count
        total = hits = done = 0
        with self.processes.autocast():
            for scores, which in scores_of(self.model, pictures, view or self.view, self.at_once, index, count):
                good = measure(scores.cpu().numpy(), labels[which])
                total, hits, done = total + len(good), hits + int(good.sum()), done + len(which)
                self.tell(name, done, -(-len(pictures) // count))
        hits_of_all, total_of_all = self.processes.total([float(hits), float(total)])
        if not total_of_all:
            raise ValueError(f"{name}: not one of {len(pictures)} pictures could be judged")
        return hits_of_all / total_of_all

    def judge(self, sets: Iterable[Set], benchmarks: Benchmarks) -> Found:
        """The sets in their order; the validation set is needed for all, since it names the classes."""
        made, (pictures, classes) = Found(), benchmarks.validation()
        self.check(classes)
        judged = [pictures]
        for name in sets:
            if name == "val":
                made.accuracy[name] = self.share(name, pictures)
            elif name == "real":
                lists = np.fromiter(benchmarks.real(pictures, len(classes)), dtype=object, count=len(pictures))
                made.accuracy[name] = self.share(name, pictures, found_of_many, lists)
            elif name == "v2":
                judged.append(benchmarks.v2(classes))
                made.accuracy[name] = self.share(name, judged[-1])
            elif name == "nine":
                variants, nine = benchmarks.nine(len(classes))
                for variant, some in variants.items():
                    made.accuracy[variant] = self.share(variant, some, partial(found_of_nine, nine=nine))
                judged += variants.values()
            elif name == "c":
                for corruption, severities in benchmarks.corrupted(classes).items():
                    shares = [self.share(f"{corruption} {s}", some) for s, some in severities.items()]
                    made.corruptions[corruption] = [1 - share for share in shares]
                    judged += severities.values()
            else:
                some, chosen = benchmarks.subset(name, classes)
                made.accuracy[name] = self.share(name, some, partial(found_among, classes=chosen))
                judged.append(some)
        made.broken = sum(len(each.broken) for each in judged)
        return made

    def judge_corrupted(self, folder: Path, names: Sequence[str] = CORRUPTIONS) -> Found:
        """On pictures of one's own, a folder for each class, as they are and corrupted on the way."""
        files = of_folder(folder)
        classes = in_order({entry.kind for entry in files})
        self.check(classes)
        pictures, made, middle = labelled(files, classes), Found(), self.view
        assert isinstance(middle, Middle)
        package()  # before the work
        made.accuracy["as they are"] = self.share("as they are", pictures)
        for name in names:
            views = [Corrupted(name, severity, middle) for severity in SEVERITIES]
            shares = [self.share(f"{name} {view.severity}", pictures, view=view) for view in views]
            made.corruptions[name] = [1 - share for share in shares]
        made.broken = len(pictures.broken)
        return made

    def check(self, classes: Sequence[str]) -> None:
        outputs = getattr(self.model, "num_classes", len(classes))
        if outputs != len(classes):
            raise ValueError(
                f"the model has {outputs} classes, and the pictures have {len(classes)}: {classes[0]}, ..."
            )


def per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def robustness_line(name: str, parameters: int, made: Found) -> list[str]:
    """As a line of the paper's table."""
    columns = [
        made.accuracy.get("val"),
        made.mce,
        *(made.accuracy.get(n) for n in ("a", "r", "mixed_same", "mixed_rand")),
    ]
    return [name, f"{parameters / 1e6:.1f}", *(per_cent(c) for c in columns)]
