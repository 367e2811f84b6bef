"""What a user may change about any run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshort.lab.train import Run, read_run


def adjusted(run: Run, *, steps: int | None = None, **changes: Any) -> Run:
    """The run, and those it starts from, with the fields given that are not None; the warm-up is shortened or
    lengthened as the steps are."""
    before = None if run.starts_from is None else adjusted(run.starts_from, steps=steps, **changes)
    changes = {name: value for name, value in changes.items() if value is not None}
    if steps is not None:
        warmup = math.ceil(run.schedule.warmup * steps / run.steps)
        changes |= dict(steps=steps, schedule=replace(run.schedule, warmup=warmup))
    return replace(run, starts_from=before, **changes)


def as_long_as_begun(run: Run, out: Path) -> Run:
    """The run, and those it starts from, with the steps and warm-up of what was begun of them in `out`."""
    before = None if run.starts_from is None else as_long_as_begun(run.starts_from, out)
    record = out / run.name / "run.json"
    if not record.exists():
        return replace(run, starts_from=before)
    begun = read_run(record)
    schedule = replace(run.schedule, warmup=begun.schedule.warmup)
    return replace(run, starts_from=before, steps=begun.steps, schedule=schedule)
