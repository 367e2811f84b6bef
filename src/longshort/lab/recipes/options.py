"""What a user may change about any run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longshort.lab.runs.run import Run


def adjusted(run: Run, *, steps: int | None = None, **changes: Any) -> Run:
    """The run, and those it starts from, with the fields given that are not None (see Run.with_steps)."""
    before = None if run.starts_from is None else adjusted(run.starts_from, steps=steps, **changes)
    changes = {name: value for name, value in changes.items() if value is not None}
    run = run if steps is None else run.with_steps(steps)
    return replace(run, starts_from=before, **changes)
