"""Files that are whole or not there: the one writer of them. And the lock that lets one process at a time into a
folder, the cache folder, and checks of size and content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

CHUNK = 1 << 20
UNFINISHED = ".tmp"  # the ending of a file that is being written


def cache_folder(cache: Path | None = None) -> Path:
    """The folder named, or the user's cache folder: $XDG_CACHE_HOME/longshort, else ~/.cache/longshort."""
    if cache is not None:
        return Path(cache)
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "longshort"


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
    write_whole(to, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())


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


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Makes the folder, and lets one process at a time into the block. The others wait, or get a BlockingIOError."""
    if sys.platform == "win32":  # has no lock of folders
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    handle = _locked(folder, wait)
    _held.add(handle)
    try:
        yield
    finally:
        if handle in _held:  # else this is a forked process, which left it to the other
            _held.remove(handle)
            os.close(handle)


_held: set[int] = set()  # locks of this process


def _leave_locks() -> None:
    """A forked process, such as one that reads pictures, must not keep the lock of one that was killed."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def _locked(folder: Path, wait: bool) -> int:
    import fcntl

    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:  # some network file systems have no locks
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        os.close(handle)  # the folder was removed meanwhile


def has_size(path: Path, size: int | None) -> bool:
    """Whether the file is there, of this size where one is known."""
    return path.is_file() and size in (None, path.stat().st_size)


def check_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(f"the disk of {folder} has {free:,} bytes free, {need:,} are needed: make room or take another")


def check_file(path: Path, size: int, md5: str | None = None) -> None:
    """Refuses a file of another size or content than expected."""
    check_size(path, path.stat().st_size, size)
    if md5 is not None:
        with path.open("rb") as file:
            check_md5(path, hashlib.file_digest(file, new_md5).hexdigest(), md5)


def check_size(what: object, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{what} has {found:,} bytes, expected {expected:,}")


def check_md5(what: object, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"{what} has md5 {found}, expected {expected}")


def new_md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)  # else refused on machines in FIPS mode
