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
    handle, path = _locked(folder, wait)
    _lock_handles.add(handle)
    try:
        yield
    finally:
        if handle in _lock_handles:  # a forked process has closed it
            _lock_handles.remove(handle)
            if path != folder:
                path.unlink(missing_ok=True)
            os.close(handle)


_lock_handles: set[int] = set()  # locks of this process


def _leave_locks() -> None:
    """In a forked process, such as one that reads pictures."""
    while _lock_handles:
        os.close(_lock_handles.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def _locked(folder: Path, wait: bool) -> tuple[int, Path]:
    """A handle that holds the lock, and what it is a handle of: the folder or, where folders cannot be locked, a file
    in it."""
    path, flags = folder, os.O_RDONLY
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, flags, 0o666)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as error:  # a folder that cannot be written: of a cache, it may be read
            logger.debug("%s is not locked: %s", folder, error)
            return os.open(folder, os.O_RDONLY), folder
        try:
            _flock(handle, wait)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle, path
            os.close(handle)  # removed meanwhile
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError as error:
            if path != folder:
                logger.warning("%s cannot be locked (%s): use it from one process at a time", folder, error.strerror)
                return handle, path
            os.close(handle)
            path, flags = folder / LOCK, os.O_RDWR | os.O_CREAT  # network disks lock what is open for writing


def _flock(handle: int, wait: bool) -> None:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
