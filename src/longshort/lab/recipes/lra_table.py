"""The lines of the paper's Long Range Arena tables, each with what the paper has for it and the run that gives ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longshort.lab.recipes import lra
from longshort.lab.train import Run


@dataclass(frozen=True)
class Task:
    """A data set with a protocol. folder: its name in a folder that has all data sets."""

    name: str
    title: str
    folder: str
    recipe: Callable[..., Run]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """One model on one task. paper, deviation: accuracy in %, macs: in G; None where the paper has none.

    insertion, deletion: the paper's Table 2. seeds: how many are trained unless told otherwise; 0 for lines that are
    there for comparison alone.
    """

    task: Task
    attention: str
    paper: float | None = None
    deviation: float | None = None
    macs: float | None = None
    seeds: int = 0
    insertion: float | None = None
    deletion: float | None = None

    @property
    def name(self) -> str:
        return f"{self.task.name}/{self.attention}"

    def run(self, seed: int, data: Path | None = None) -> Run:
        """data: a folder that has the task's own folder; without one, or where it has none, the usual place."""
        here = None if data is None else data / self.task.folder
        return self.task.recipe(attention=self.attention, data=here if here and here.exists() else None, seed=seed)


BEYOND = "Rotary positions, self-pretraining by masking, weight decay, a higher rate on a cosine, clipping, more steps."

LISTOPS = Task("listops", "ListOps without closing brackets (the paper's)", "listops", lra.listops)
BRACKETS = Task(
    "listops_brackets",
    "ListOps with closing brackets (the well-posed task)",
    "listops",
    partial(lra.listops, brackets=True),
)
TEXT_PAPER = Task(
    "text_paper",
    "Text, the paper's protocol (checkpoint chosen on the test set)",
    "imdb",
    partial(lra.text, protocol="paper"),
)
TEXT = Task("text", "Text, chosen on a tenth of the training set", "imdb", lra.text)
RETRIEVAL = Task("retrieval", "Retrieval", "aan", lra.retrieval, "The paper's figures are of the official pairs.")
IMAGE = Task("image", "Image", "cifar10", lra.image)
PATHFINDER = Task(
    "pathfinder",
    "Pathfinder",
    "pathfinder",
    lra.pathfinder,
    "The paper's figures are of the official pictures; unless those were given, ours are of our own generator.",
)
MODERN_LISTOPS = Task(
    "listops_modern",
    "Beyond the paper: ListOps with closing brackets, today's habits",
    "listops",
    lra.listops_modern,
    BEYOND + " Dropout, which the paper's training has on Text alone.",
)
MODERN_TEXT = Task(
    "text_modern",
    "Beyond the paper: Text, today's habits",
    "imdb",
    lra.text_modern,
    BEYOND + " The checkpoint is chosen on a tenth of the training set.",
)

LINES = (
    Line(LISTOPS, "8,32", 37.50, 0.3, 0.20, seeds=4),
    Line(LISTOPS, "16,2", 38.36, 0.4, 0.16, seeds=4),
    Line(LISTOPS, "0,4", 37.79, 0.2, 0.15, seeds=4),
    Line(LISTOPS, "full", 37.13, 0.4, 1.21, seeds=4),
    Line(LISTOPS, "linformer", 37.38, 0.4, 0.41),
    Line(LISTOPS, "performer", 32.78, 9.4, 0.41),
    Line(LISTOPS, "nystromformer", 37.34, 0.2, 0.61),
    Line(LISTOPS, "reformer", 36.44, 0.4, 0.27),
    Line(BRACKETS, "8,32", seeds=4),
    Line(BRACKETS, "16,2", seeds=4),
    Line(BRACKETS, "0,4", seeds=4),
    Line(BRACKETS, "full", seeds=4),
    Line(TEXT_PAPER, "8,32", 66.01, 0.2, 0.40, seeds=2),
    Line(TEXT_PAPER, "1,1", 68.40, 0.8, 0.29, seeds=2, insertion=66.34, deletion=62.62),
    Line(TEXT_PAPER, "0,128", 66.28, 0.7, 0.69, seeds=2, insertion=63.16, deletion=58.95),
    Line(TEXT_PAPER, "full", 65.35, 0.3, 4.57, seeds=2),
    Line(TEXT_PAPER, "linformer", 56.12, 1.5, 0.81, seeds=2, insertion=55.94, deletion=54.91),
    Line(TEXT_PAPER, "linformer+1", 59.63, seeds=1, insertion=56.69, deletion=56.29),
    Line(TEXT_PAPER, "performer", 65.21, 0.2, 0.82),
    Line(TEXT_PAPER, "nystromformer", 65.75, 0.2, 1.02),
    Line(TEXT_PAPER, "reformer", 64.88, 0.4, 0.58),
    Line(TEXT, "8,32", seeds=2),
    Line(TEXT, "1,1", seeds=2),
    Line(TEXT, "0,128", seeds=2),
    Line(TEXT, "full", seeds=2),
    Line(TEXT, "linformer", seeds=2),
    Line(RETRIEVAL, "8,32", 81.79, 0.3, 0.80, seeds=1),
    Line(RETRIEVAL, "1,254", 81.95, 0.5, 2.17, insertion=69.93, deletion=64.19),
    Line(RETRIEVAL, "0,256", 81.86, 0.5, 2.17, insertion=70.01, deletion=64.98),
    Line(RETRIEVAL, "full", 82.30, 0.4, 9.14, seeds=1),
    Line(RETRIEVAL, "linformer", 79.37, 0.9, 1.62, insertion=53.66, deletion=51.75),
    Line(RETRIEVAL, "linformer+1", 79.68, insertion=52.83, deletion=52.13),
    Line(RETRIEVAL, "performer", 81.70, 0.2, 1.63),
    Line(RETRIEVAL, "nystromformer", 81.29, 0.3, 2.03),
    Line(RETRIEVAL, "reformer", 78.64, 0.7, 1.15),
    Line(IMAGE, "8,32", 45.05, seeds=1),
    Line(IMAGE, "full", 42.44, seeds=1),
    Line(IMAGE, "linformer", 38.56),
    Line(IMAGE, "performer", 42.77),
    Line(IMAGE, "nystromformer", 41.58),
    Line(IMAGE, "reformer", 43.29),
    Line(PATHFINDER, "8,32", 76.48, seeds=1),
    Line(PATHFINDER, "full", 74.16, seeds=1),
    Line(PATHFINDER, "linformer", 76.34),
    Line(PATHFINDER, "performer", 77.05),
    Line(PATHFINDER, "nystromformer", 70.94),
    Line(PATHFINDER, "reformer", 69.36),
    Line(MODERN_LISTOPS, "8,32", seeds=2),
    Line(MODERN_LISTOPS, "full", seeds=1),
    Line(MODERN_TEXT, "8,32", seeds=2),
    Line(MODERN_TEXT, "full", seeds=1),
)
