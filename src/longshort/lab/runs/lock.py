"""The lock that lets one process at a time into a folder.

A forked process shares its parent's locks, and would keep them when the parent is killed: it closes them at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)
LOCK = ".lock"  # where folders themselves cannot be locked


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
    """In a forked process, such as one that reads pictures."""
    while _lock_handles:
        os.close(_lock_handles.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def _locked(folder: Path, wait: bool) -> int:
    """A handle that holds the lock."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # removed meanwhile
            continue
        try:
            _flock(handle, wait)
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:
            os.close(handle)
            return _lock_file(folder / LOCK, wait)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        os.close(handle)  # the folder was removed meanwhile


def _lock_file(path: Path, wait: bool) -> int:
    """Network file systems lock only what is open for writing, and some of them nothing."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _flock(handle, wait)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError as error:
        logger.warning("%s cannot be locked (%s): use it from one process at a time", path.parent, error.strerror)
    return handle


def _flock(handle: int, wait: bool) -> None:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
