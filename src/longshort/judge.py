"""What a trained classifier finds of the labels it has not seen, as its folder keeps it in judged.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from longshort.data.imdb import Imdb
from longshort.data.labelled import Labelled
from longshort.data.perturb import delete_punctuation, insert_punctuation
from longshort.evaluate import classifies, find_model, load_trained
from longshort.tasks import Classification
from longshort.train.checkpoint import META, write_whole
from longshort.train.processes import Processes

JUDGED = "judged.json"
Tests = dict[str, Any]


def tests_of(task: Classification) -> Tests:
    """The test set and, of texts, its two perturbed forms (the paper's Table 2)."""
    test = task.splits.test
    if not isinstance(task.source, Imdb):
        return {"test": test}
    changed = {"insertion": insert_punctuation(test.sequences), "deletion": delete_punctuation(test.sequences)}
    return {"test": test, **{name: Labelled(sequences, test.labels) for name, sequences in changed.items()}}


def judge_run(folder: Path, *, which: Literal["best", "last"] = "best", cpu: bool = False) -> dict[str, Any]:
    """Judge a run of a classification by its best checkpoint, and keep what was found in its folder."""
    processes = Processes("auto", cpu=cpu)
    run, model = load_trained(str(folder), processes.device, which)
    if not classifies(run.task):
        raise ValueError(f"{folder} is no run of a classification")
    found = {}
    for name, items in tests_of(run.task).items():
        with processes.autocast():
            right, count = run.task.judge(model, items)["accuracy"]
        found[name] = right / count
    about = json.loads((Path(find_model(str(folder), which)) / META).read_text())
    facts = {
        "run": run.name,
        "checkpoint": about["step"],
        "dev": about["metrics"].get("accuracy"),
        "accuracy": found,
        "precision": processes.precision,
        "device": processes.device.type,
    }
    write_whole(folder / JUDGED, json.dumps(facts, indent=1).encode())
    return facts
