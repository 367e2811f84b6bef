"""`longshort report imagenette`: CvT*-LS-13, the same without DualLN, and CvT-13 with full attention, trained alike."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from longshort.analysis.curves import draw_accuracies
from longshort.bench.run import write_json
from longshort.recipes.imagenet import NETTE_STEPS, NetteModel, imagenette
from longshort.report.runs import Wish, done, train_all
from longshort.report.table import number, spread
from longshort.train import Run, TrainingError
from longshort.train.checkpoint import write_whole
from longshort.train.log import read_log

NAMES: dict[NetteModel, str] = {
    "cvt_ls_13": "CvT*-LS-13",
    "cvt_13": "CvT-13, full attention",
    "cvt_ls_13_plain": "CvT*-LS-13 without DualLN",
}
COLUMNS = ("model", "pictures", "epochs", "validation set, %", "minutes", "pictures a second", "on")
NOTE = (
    "The last epoch's moving average is judged. Minutes are of all training, with its evaluations; pictures a second "
    "are of its steps, with the reading of pictures, a median."
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
    prints = None
    if wish.train:
        if wish.data is None:
            raise ValueError("say with --data where Imagenette is: its folder, or a zip or tar file of it")
        prints = wish.lines[0].run(0, wish.data).task.fingerprint()
    wish.out.mkdir(parents=True, exist_ok=True)
    write(wish)  # what this lacks, such as a package, shows before the work
    todo = [run for line in wish.lines if wish.train for run in wish.runs(line) if not done(run, wish.out, prints)]
    failed = train_all(wish, todo, lambda: write(wish), console)
    found = [f for f in write(wish) if f.line in wish.lines]
    console.print(markdown(found), highlight=False, markup=False, soft_wrap=True)
    files = [path for ending in ("md", "json", "png") if (path := wish.file("imagenette", ending)).exists()]
    console.print(f"written: {', '.join(map(str, files))}", highlight=False, soft_wrap=True)
    if failed:
        raise TrainingError(f"{len(failed)} of {len(todo)} runs failed; {'; '.join(failed)}")
    return found


def found_of(line: Line, wish: Wish[Line]) -> Found:
    """With all seeds that were ever judged."""
    found = Found(line)
    for run, facts in wish.judged(line):
        found.accuracy.append(100 * facts["accuracy"]["validation"])
        found.minutes.append(json.loads((wish.out / run.name / "result.json").read_text())["seconds"] / 60)
        speeds = [each["pictures_per_second"] for each in read_log(wish.out / run.name) if "loss" in each]
        found.per_second.append(statistics.median(speeds))
        found.devices.append(facts["device"])
        found.epochs = run.steps / NETTE_STEPS
    return found


def write(wish: Wish[Line]) -> list[Found]:
    """All of the table, whatever part of it is worked on, and the accuracy over time of each line's first seed."""
    found = [found_of(line, wish) for line in wish.table]
    write_json({"lines": [asdict(f) | {"line": f.line.name} for f in found]}, wish.file("imagenette", "json"))
    write_whole(wish.file("imagenette", "md"), (markdown(found) + "\n").encode())
    logs = {f.line.title: read_log(wish.out / run.name) for f in found for run, _ in list(wish.judged(f.line))[:1]}
    if logs:
        draw_accuracies(logs, wish.file("imagenette", "png"), title="Accuracy on Imagenette's validation set")
    return found


def markdown(found: Sequence[Found]) -> str:
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    return "\n".join([*head, *map(row, found), "", NOTE])


def row(f: Found) -> str:
    cells = (
        NAMES[f.line.model],
        f"{f.line.side}²",
        "" if f.epochs is None else f"{f.epochs:.3g}",
        spread(f.accuracy),
        number(statistics.mean(f.minutes) if f.minutes else None),
        f"{statistics.mean(f.per_second):,.0f}" if f.per_second else "",
        ", ".join(dict.fromkeys(f.devices)),
    )
    return f"| {' | '.join(cells)} |"
