"""Checksums of the files of a checkpoint, in a file beside them. Whoever reads weights there compares them first."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

META = "checkpoint.json"
RECORD, CHECKPOINTS = "run.json", "checkpoints"  # in the folder of a run
NAME = re.compile(r"step_([0-9]{8}|[1-9][0-9]{8,})")  # of a checkpoint there


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
        lacking = [name for name in ("facts", "files") if name not in facts]
        intact = not lacking and facts.pop("facts") == checksum_of(facts)
    except OSError as error:
        raise DamagedError(f"{META} cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{META} cannot be read ({str(error).partition(chr(10))[0]})") from None
    if lacking:
        raise DamagedError(f"{META} cannot be read (it lacks {' and '.join(lacking)})")
    if not intact:
        raise DamagedError(f"{META} is not what was written")
    files = facts["files"]
    if not isinstance(files, dict):
        raise DamagedError(f"files in {META} cannot be {files!r}")
    if wrong := [name for name in files if {"/", "\\", "\0"} & {*name} or name in ("", ".", "..")]:
        raise DamagedError(f"files in {META} cannot have the name {wrong[0]!r}")
    return facts


def compare(folder: Path, files: dict[str, str]) -> None:
    """Raises a DamagedError unless each file is what was written."""
    for name, expected in files.items():
        try:
            actual = checksum(folder / name)
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if actual != expected:
            raise DamagedError(f"{name} is not what was written")


def run_folder(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to; None of other folders."""
    for place in (checkpoint.absolute(), checkpoint.resolve()):  # a checkpoint, or the path to it, may be a link
        if place.parent.name == CHECKPOINTS and (place.parents[1] / RECORD).exists():
            return place.parents[1]
    return None


def needs_checksums(folder: Path) -> bool:
    """True of the checkpoints of runs, and of any folder with a checkpoint.json. Saved models have no checksums."""
    return (folder / META).exists() or run_folder(folder) is not None


def verify(folder: Path, names: Collection[str]) -> None:
    """Compares these files of a checkpoint with their checksums. Other folders pass."""
    if not needs_checksums(folder):
        return
    try:
        files = read_meta(folder)["files"]
        present = [name for name in names if (folder / name).exists()]
        if unlisted := [name for name in present if name not in files]:
            raise DamagedError(f"files in {META} lack {unlisted[0]}")
        compare(folder, {name: files[name] for name in names if name in files})
    except DamagedError as error:
        raise DamagedError(f"checkpoint {folder} is corrupt: {error}") from None
