"""What a trained classifier finds of the labels it has not seen, as its folder keeps it in judged.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from longshort.data.aan import Aan
from longshort.data.imdb import Imdb
from longshort.data.perturb import delete_punctuation, insert_punctuation
from longshort.evaluate import classifies, find_model, load_trained
from longshort.tasks import Classification
from longshort.train.checkpoint import META, write_whole
from longshort.train.processes import Processes

JUDGED = "judged.json"


def tests_of(task: Classification) -> dict[str, Any]:
    """The test set and, of texts, its two perturbed forms (the paper's Table 2)."""
    test = task.splits.test
    changed: dict[str, Any] = {}
    for name, change in {"insertion": insert_punctuation, "deletion": delete_punctuation}.items():
        if isinstance(task.source, Imdb):
            changed[name] = replace(test, sequences=change(test.sequences))
        elif isinstance(task.source, Aan):
            changed[name] = replace(test, documents=change(test.documents))
    return {"test": test, **changed}


def share_found(
    task: Classification,
    model: nn.Module,
    items: Any,
    processes: Processes,
    tell: Callable[[int], Any] = lambda count: None,
) -> tuple[float, float]:
    """Labels found of the items, and how many there are, by all processes together."""
    with processes.autocast():
        counts = task.judge(model, items, processes.index, processes.count, tell)
    right, count = processes.total(counts["accuracy"])
    return right, count


def judge_run(folder: Path, *, which: Literal["best", "last"] = "best", cpu: bool = False) -> dict[str, Any]:
    """Judge a run of a classification by its best checkpoint, and keep what was found in its folder."""
    processes = Processes("auto", cpu=cpu)
    run, model = load_trained(str(folder), processes.device, which)
    if not classifies(run.task):
        raise ValueError(f"{folder} is no run of a classification")
    found = {}
    for name, items in tests_of(run.task).items():
        right, count = share_found(run.task, model, items, processes)
        found[name] = right / count
    about = json.loads((Path(find_model(str(folder), which)) / META).read_text())
    facts = {
        "run": run.name,
        "checkpoint": about["step"],
        "dev": about["metrics"].get("accuracy"),
        "accuracy": found,
        "source": run.task.source.name,
        "data": run.task.fingerprint(),
        "precision": processes.precision,
        "device": processes.device.type,
    }
    write_whole(folder / JUDGED, json.dumps(facts, indent=1).encode())
    return facts
