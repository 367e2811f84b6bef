"""`longshort report imagenette`: CvT*-LS-13, the same without DualLN, and CvT-13 with full attention, trained alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from longshort.lab.figures.curves import draw_accuracies
from longshort.lab.recipes.imagenet import NETTE_STEPS, NetteModel, imagenette
from longshort.lab.report.runs import Wish, check_trained, tell, train_all
from longshort.lab.report.table import number, spread, table
from longshort.lab.runs.log import read_log
from longshort.lab.train import Run

NAMES: dict[NetteModel, str] = {
    "cvt_ls_13": "CvT*-LS-13",
    "cvt_13": "CvT-13, full attention",
    "cvt_ls_13_plain": "CvT*-LS-13 without DualLN",
}
COLUMNS = ("model", "pictures", "epochs", "validation set, %", "minutes", "pictures a second", "on")
NOTE = (
    "The last epoch's moving average is evaluated. Minutes are of all training, with its evaluations; pictures a "
    "second are of its steps, with the reading of pictures, a median."
)


@dataclass(frozen=True)
class Line:
    model: NetteModel
    side: int
    seeds: int = 1

    @property
    def name(self) -> str:
        return f"{self.model}/{self.side}"

    @property
    def title(self) -> str:
        return f"{NAMES[self.model]}, {self.side}²"

    def run(self, seed: int, data: Path | None = None) -> Run:
        return imagenette(data or Path("imagenette"), model=self.model, side=self.side, seed=seed)


LINES = (
    Line("cvt_ls_13", 160),
    Line("cvt_13", 160),
    Line("cvt_ls_13_plain", 160),
    Line("cvt_ls_13", 224),
    Line("cvt_13", 224),
)


@dataclass
class Found:
    """Of one line, by seed: the share of labels found, in %, the minutes it took, pictures a second, and where."""

    line: Line
    accuracy: list[float] = field(default_factory=list)
    minutes: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    epochs: float | None = None


def report(wish: Wish[Line], *, console: Console) -> list[Found]:
    """Train what is missing, and write table and figure; they are written anew after every run."""
    if wish.train and wish.data is None:
        raise ValueError("say with --data where Imagenette is: its folder, or a zip or tar file of it")
    todo = wish.undone_on_one_set()
    wish.out.mkdir(parents=True, exist_ok=True)
    write(wish)  # what this lacks, such as a package, shows before the work
    failed = train_all(wish, todo, lambda: write(wish), console)
    found = [f for f in write(wish) if f.line in wish.lines]
    files = [path for ending in ("md", "json", "png") if (path := wish.file("imagenette", ending)).exists()]
    tell(markdown(found), f"written: {', '.join(map(str, files))}", console)
    check_trained(failed, todo)
    return found


def found_of(line: Line, wish: Wish[Line]) -> Found:
    """With all seeds that were ever evaluated."""
    found = Found(line)
    for run, facts in wish.evaluated(line):
        found.accuracy.append(100 * facts["accuracy"]["validation"])
        found.minutes.append(wish.minutes(run))
        speeds = [each["pictures_per_second"] for each in read_log(wish.out / run.name) if "loss" in each]
        found.per_second.append(statistics.median(speeds))
        found.devices.append(facts["device"])
        found.epochs = run.steps / NETTE_STEPS
    return found


def write(wish: Wish[Line]) -> list[Found]:
    """All of the table, whatever part of it is worked on, and the accuracy over time of each line's first seed."""
    found = [found_of(line, wish) for line in wish.table]
    wish.write("imagenette", [asdict(f) | {"line": f.line.name} for f in found], markdown(found))
    logs = {f.line.title: read_log(wish.out / run.name) for f in found for run, _ in list(wish.evaluated(f.line))[:1]}
    if logs:
        draw_accuracies(logs, wish.file("imagenette", "png"), title="Accuracy on Imagenette's validation set")
    return found


def markdown(found: Sequence[Found]) -> str:
    return f"{table(COLUMNS, map(row, found))}\n\n{NOTE}"


def row(f: Found) -> tuple[str, ...]:
    return (
        NAMES[f.line.model],
        f"{f.line.side}²",
        "" if f.epochs is None else f"{f.epochs:.3g}",
        spread(f.accuracy),
        number(statistics.mean(f.minutes) if f.minutes else None),
        f"{statistics.mean(f.per_second):,.0f}" if f.per_second else "",
        ", ".join(dict.fromkeys(f.devices)),
    )
