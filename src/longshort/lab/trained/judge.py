"""What a trained classifier finds of the labels it has not seen, as its folder keeps it in judged.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from longshort.lab.data.aan import Aan
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.labelled import Labelled
from longshort.lab.data.perturb import delete_punctuation, insert_punctuation
from longshort.lab.trained import classifies, find_model, find_run, load_trained
from longshort.lab.tasks import Classification, TextClassification
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.runs.checkpoints import META, write_whole
from longshort.lab.train.processes import Processes

JUDGED = "judged.json"


Labelling = Classification | ImageClassification


def tests_of(task: Labelling) -> dict[str, Any]:
    """The test set and, of texts, its two perturbed forms (the paper's Table 2), or where a tokenizer reads them, the
    longest; of pictures, the validation set."""
    if isinstance(task, ImageClassification):
        return {"validation": task.splits.dev}
    if isinstance(task, TextClassification):
        return sets_of(task, "test")
    test = task.splits.test
    changed: dict[str, Any] = {}
    for name, change in {"insertion": insert_punctuation, "deletion": delete_punctuation}.items():
        if isinstance(task.source, Imdb):
            changed[name] = replace(test, sequences=change(test.sequences))
        elif isinstance(task.source, Aan):
            changed[name] = replace(test, documents=change(test.documents))
    return {"test": test, **changed}


def sets_of(task: Classification, split: Literal["dev", "test", "both"]) -> dict[str, Any]:
    """What was held back from training; of texts for which length matters, the longest of the test set again."""
    sets = {part: getattr(task.splits, part) for part in (("dev", "test") if split == "both" else (split,))}
    if isinstance(task, TextClassification) and "test" in sets:
        sets["longest tenth"] = longest_tenth(sets["test"])
    return sets


def longest_tenth(items: Labelled) -> Labelled:
    """By their lengths before they are cut, in their order."""
    count = -(-len(items) // 10)
    return items.take(np.sort(np.argsort(items.lengths, kind="stable")[len(items) - count :]))


def share_found(
    task: Labelling,
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


def judge_run(folder: Path, *, which: Literal["best", "last"] | None = None, cpu: bool = False) -> dict[str, Any]:
    """Judge a run of a classification, and keep what was found in its folder.

    which: by its best checkpoint unless given; of pictures, which have no other set to choose it by, by its last.
    """
    processes = Processes("auto", cpu=cpu)
    known = find_run(str(folder))
    pictures = known is not None and isinstance(known.task, ImageClassification)
    which = which or ("last" if pictures else "best")
    run, model = load_trained(str(folder), processes.device, which)
    if not (isinstance(run.task, ImageClassification) or classifies(run.task)):
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
        "device": torch.cuda.get_device_name() if processes.device.type == "cuda" else "cpu",
    }
    write_whole(folder / JUDGED, json.dumps(facts, indent=1).encode())
    return facts
