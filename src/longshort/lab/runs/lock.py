"""The lock that lets one process at a time into a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Makes the folder, and lets one process at a time into the block. The others wait, or get a BlockingIOError."""
    if sys.platform == "win32":  # has no lock of folders
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    handle = _locked(folder, wait)
    _lock_handles.add(handle)
    try:
        yield
    finally:
        if handle in _lock_handles:  # else this is a forked process, which left it to the other
            _lock_handles.remove(handle)
            os.close(handle)


_lock_handles: set[int] = set()  # locks of this process


def _leave_locks() -> None:
    """A forked process, such as one that reads pictures, must not keep the lock of one that was killed."""
    while _lock_handles:
        os.close(_lock_handles.pop())


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
