"""The text files below a folder, in an order that does not change, and their joining to one text.

What is left out is counted by reason: another name, binary, unreadable, empty, links.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from longshort.checksums import CHECKPOINTS, RECORD
from longshort.lab.data.progress import Tell
from longshort.lab.data.unpack import is_packed, pieces

HEAD = 8192  # bytes in which a NUL tells a binary file
OTHER_NAME, TRAININGS = "of another name", "folders of trainings"


@dataclass(frozen=True)
class Found:
    """A file to be joined. One that the user named is taken as it is, one found in a folder only if it is text."""

    path: Path
    size: int
    modified: int  # nanoseconds
    named: bool


def look(path: Path, *, named: bool) -> Found | None:
    """None where there is no file to read: a pipe, a link to nothing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Found(path, status.st_size, status.st_mtime_ns, named) if stat.S_ISREG(status.st_mode) else None


def find(
    folder: Path, pattern: str, skipped: Counter[str], *, leave_out: Path, without: Collection[str] = ()
) -> list[Found]:
    """The files below the folder whose name matches, sorted by path; none hidden, none twice, none from outside."""
    root = folder.resolve()
    files: dict[Path, Found] = {}
    for path in sorted(
        _walk(root, pattern, skipped, leave_out, without), key=lambda path: path.relative_to(root).as_posix()
    ):
        real = Path(os.path.realpath(path)) if path.is_symlink() else path  # resolve() raises where links loop
        if not real.is_relative_to(root):
            skipped["links that lead out of the folder"] += 1
        elif real not in files and (found := look(real, named=False)):
            files[real] = found
        elif real not in files:
            skipped["unreadable"] += 1
    return list(files.values())


def _walk(root: Path, pattern: str, skipped: Counter[str], leave_out: Path, without: Collection[str]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        skipped["unreadable"] += 1

    for name, folders, files in os.walk(root, onerror=unreadable):  # does not follow links to folders
        here = Path(name)
        folders[:] = [f for f in folders if not _hidden(f) and f not in without and here / f != leave_out]
        # A run must not read itself.
        runs = [f for f in folders if all((here / f / name).exists() for name in (RECORD, CHECKPOINTS))]
        folders[:] = [f for f in folders if f not in runs]
        skipped[TRAININGS] += len(runs)
        skipped["links to folders"] += sum((here / name).is_symlink() for name in folders)
        files = [name for name in files if not _hidden(name)]
        matching = [name for name in files if fnmatchcase(name, pattern)]
        skipped[OTHER_NAME] += len(files) - len(matching)
        yield from (here / name for name in matching)


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def join(files: Iterable[Found], to: BinaryIO, skipped: Counter[str], tell: Tell) -> None:
    """Writes the files one after the other, with a newline where one ends without it and another follows."""
    last, done = b"\n", 0
    for found in files:
        reason = None if found.named else _not_text(found.path)
        if reason:
            skipped[reason] += 1
            continue
        for number, piece in enumerate(pieces(found.path, tell, done)):
            if number == 0 and last != b"\n":
                to.write(b"\n")
            to.write(piece)
            last = piece[-1:]
        done += found.size


def _not_text(path: Path) -> str | None:
    """Why a file is left out."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return "unreadable"
    if b"\0" in head or is_packed(path):
        return "binary"
    return None if head else "empty"
