"""What every benchmark needs: its cases by name, and a file of results that is whole at any time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def named(cases: Sequence[T], only: str) -> list[T]:
    """The cases with `only` in their name."""
    found = [case for case in cases if only.casefold() in case.name.casefold()]
    if not found:
        names = "; ".join(case.name for case in cases)
        raise ValueError(f"no case has {only!r} in its name; there are: {names}")
    return found


def write_json(report: dict[str, Any], path: Path) -> None:
    """All or nothing: an interrupted write leaves the file as it was."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)
