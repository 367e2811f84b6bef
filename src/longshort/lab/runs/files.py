"""Files that are whole or not there: the one writer of them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

UNFINISHED = ".tmp"  # the ending of a file that is being written


@contextmanager
def whole_file(to: Path) -> Iterator[BinaryIO]:
    """A file to write beside `to`; it becomes `to` if the block ends well, and is removed if it does not."""
    if to.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(to))
    beside = to.with_name(f"{to.name}.{uuid4().hex[:8]}{UNFINISHED}")
    try:
        with beside.open("wb") as file:
            yield file
        settle(beside, to)
    finally:
        beside.unlink(missing_ok=True)


def write_whole(to: Path, content: bytes) -> None:
    """A file that has the old content or the new, never a part."""
    with whole_file(to) as file:
        file.write(content)


def write_json(to: Path, facts: Any) -> None:
    try:
        content = json.dumps(facts, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # the name of a file may be no UTF-8
        content = json.dumps(facts, indent=2).encode()
    write_whole(to, content + b"\n")


def remove_unfinished(folder: Path) -> None:
    """What a kill left of whole files. For a folder that no other process writes into."""
    for path in folder.glob(f"*.{'?' * 8}{UNFINISHED}"):
        path.unlink(missing_ok=True)


def settle(written: Path, to: Path) -> None:
    """Renames in one step, the bytes being on the disk before the name is."""
    with written.open("rb+") as file:
        os.fsync(file.fileno())
    written.replace(to)


def flush_folder(path: Path) -> None:
    """Names, too, must reach the disk."""
    if os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
