"""The sets that models of ImageNet are evaluated on, as their authors lay them out: V2, ReaL, C, A, R and ImageNet-9.

All lie in one folder. The validation set, in which each class has a folder, says which classes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longshort.lab.data.archive import entries, of_folder
from longshort.lab.data.images import Pictures, in_order, labelled
from longshort.lab.data.labelled import Numbers
from longshort.serial import read_json, read_object, reading

CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
SEVERITIES = range(1, 6)
NINE = ("original", "mixed_same", "mixed_rand")
PLACES = {
    "v2": ("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency", "imagenetv2", "imagenet-v2"),
    "c": ("imagenet-c", "ImageNet-C", "imagenetc"),
    "a": ("imagenet-a", "ImageNet-A", "imageneta"),
    "r": ("imagenet-r", "ImageNet-R", "imagenetr"),
    "nine": ("bg_challenge", "imagenet-9", "ImageNet-9", "imagenet9", "in9"),
    "real": ("real.json", "reassessed-imagenet/real.json"),
}


@dataclass(frozen=True)
class Benchmarks:
    """folder: with val in it, or with a folder imagenet that has it; and beside that, those of PLACES."""

    folder: Path

    def place(self, name: str) -> Path:
        for each in PLACES[name]:
            for above in (self.folder, self.folder / "imagenet"):
                if (above / each).exists():
                    return above / each
        raise FileNotFoundError(f"{self.folder} has none of {', '.join(PLACES[name])}")

    def validation(self) -> tuple[Pictures, tuple[str, ...]]:
        """ImageNet's own, and its classes."""
        inside = self.folder / "imagenet"
        found = entries(inside if inside.exists() else self.folder, "val")
        classes = in_order({entry.kind for entry in found})
        return labelled(found, classes), classes

    def v2(self, classes: Sequence[str]) -> Pictures:
        """Whose folders are numbers of classes."""
        where = self.place("v2")
        found = of_folder(where)
        kinds = {entry.kind for entry in found}
        if kinds <= set(classes):
            return labelled(found, classes)
        if not all(kind.isdigit() and int(kind) < len(classes) for kind in kinds):
            raise ValueError(f"{where} must have a folder for each class, by its number, 0 to {len(classes) - 1}")
        return Pictures(found, np.array([int(entry.kind) for entry in found], np.int64))

    def real(self, pictures: Pictures, count: int) -> list[list[int]]:
        """For each picture of the validation set, of so many classes, all labels that fit it; for some, none does."""
        where = self.place("real")
        lists = read_json(where, "list of labels")
        with reading(where, "list of labels"):
            highest = max((label for fitting in lists for label in fitting), default=0)
            too_many = highest >= count
        if too_many:
            raise ValueError(f"{where} has labels up to {highest}, and the validation set has {count} classes")
        return [lists[number_of(entry.name, len(lists))] for entry in pictures.entries]

    def subset(self, name: str, classes: Sequence[str]) -> tuple[Pictures, Numbers]:
        """A or R, and the numbers of the 200 classes that it has."""
        pictures = labelled(of_folder(self.place(name)), classes)
        return pictures, np.unique(pictures.labels)

    def corrupted(self, classes: Sequence[str]) -> dict[str, dict[int, Pictures]]:
        """By corruption and severity, of those that are there; they may lie in folders such as noise and blur."""
        where = self.place("c")
        made: dict[str, dict[int, Pictures]] = {}
        for name in CORRUPTIONS:
            folders = [path for path in (where / name, *sorted(where.glob(f"*/{name}"))) if path.is_dir()]
            if folders:
                severities = {s: folders[0] / str(s) for s in SEVERITIES if (folders[0] / str(s)).is_dir()}
                made[name] = {s: labelled(of_folder(path), classes) for s, path in severities.items()}
        if not made:
            raise FileNotFoundError(f"{where} has no corruptions, which are folders such as gaussian_noise/1")
        return made

    def nine(self, count: int) -> tuple[dict[str, Pictures], Numbers]:
        """The three variants, of nine classes each, and which of them each of the `count` classes of ImageNet belongs
        to, or -1."""
        where = self.place("nine")
        made = {}
        for variant in NINE:
            folder = where / variant / "val"
            found = of_folder(folder if folder.is_dir() else where / variant)
            made[variant] = labelled(found, in_order({entry.kind for entry in found}))
        return made, self.nine_of_all(where, count)

    def nine_of_all(self, where: Path, count: int) -> Numbers:
        name = "in_to_in9.json"
        files = [path / name for path in (where, where.parent) if (path / name).is_file()]
        if not files:
            raise FileNotFoundError(
                f"{name}, which says what ImageNet's classes are among the nine, is not in {where}: it is in the "
                "repository MadryLab/backgrounds_challenge on GitHub"
            )
        table = read_object(files[0], "table of classes")
        return np.array([table.get(str(number), -1) for number in range(count)], np.int64)


def number_of(name: str, count: int) -> int:
    """Of ILSVRC2012_val_00000293.JPEG: 292."""
    digits = Path(name).stem.rpartition("_")[2]
    if not digits.isdigit() or not 1 <= int(digits) <= count:
        raise ValueError(f"{name} is not named as ImageNet's validation pictures are, such as ILSVRC2012_val_00000293")
    return int(digits) - 1
