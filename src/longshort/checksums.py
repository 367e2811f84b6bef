"""Checksums of the files of a checkpoint, in a file beside them. Whoever reads weights there compares them first."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

META = "checkpoint.json"
NAME = re.compile(r"step_\d{8,}")  # of a checkpoint in the folder of a run


class DamagedError(ValueError):
    """A file is missing, or is not what was written."""


def checksum(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def checksum_of(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def with_checksum(facts: dict[str, Any]) -> bytes:
    """The content of checkpoint.json, with a checksum of its own."""
    facts = {name: value for name, value in facts.items() if name != "facts"}
    return json.dumps({**facts, "facts": checksum_of(facts)}, indent=1).encode()


def read_meta(folder: Path) -> dict[str, Any]:
    """What checkpoint.json says, compared with its own checksum. `files` has the checksum of each file by its name."""
    try:
        facts: dict[str, Any] = json.loads((folder / META).read_bytes())
        intact = facts.pop("facts") == checksum_of(facts)
        files = facts["files"]
    except OSError as error:
        raise DamagedError(f"{META} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{META} cannot be read ({str(error).partition(chr(10))[0]})") from None
    if not intact:
        raise DamagedError(f"{META} is not what was written")
    if not isinstance(files, dict):
        raise DamagedError(f"files in {META} cannot be {files!r}")
    if wrong := [name for name in files if {"/", "\\", "\0"} & {*name} or name in ("", ".", "..")]:
        raise DamagedError(f"files in {META} cannot have the name {wrong[0]!r}")
    return facts


def compare(folder: Path, files: dict[str, str], only: Collection[str] | None = None) -> None:
    """Raises a DamagedError unless each file is what was written. only: the names of those that are needed."""
    for name, expected in files.items():
        if only is not None and name not in only:
            continue
        try:
            actual = checksum(folder / name)
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if actual != expected:
            raise DamagedError(f"{name} is not what was written")


def has_checksums(folder: Path) -> bool:
    """Whether it must have them: every checkpoint in the folder of a run. Saved models have none."""
    folder = folder.resolve()
    in_run = folder.parent.name == "checkpoints" and NAME.fullmatch(folder.name) is not None
    return in_run or (folder / META).exists()


def verify(folder: Path, only: Collection[str] | None = None) -> None:
    """Compares a checkpoint with its checksums. only: the names of the files that are needed."""
    if not has_checksums(folder):
        return
    try:
        compare(folder, read_meta(folder)["files"], only)
    except DamagedError as error:
        raise DamagedError(f"checkpoint {folder} is corrupt: {error}") from None
