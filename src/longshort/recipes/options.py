"""What a user may change about any run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longshort.train import Run


def adjusted(run: Run, **changes: Any) -> Run:
    """The run, and those it starts from, with the fields given that are not None."""
    before = None if run.starts_from is None else adjusted(run.starts_from, **changes)
    return replace(run, starts_from=before, **{name: value for name, value in changes.items() if value is not None})
