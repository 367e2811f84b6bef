"""One process at a time in a folder: also where it is removed meanwhile, in forked processes, on network disks."""

import errno
import fcntl
import logging
import os
import stat

import pytest

from longshort.lab.runs import lock
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.lock import folder_lock


def is_locked(folder):
    try:
        with folder_lock(folder, wait=False):
            return False
    except BlockingIOError:
        return True


def test_one_at_a_time(tmp_path):
    folder = tmp_path / "a" / "b"
    with folder_lock(folder):
        assert folder.is_dir() and is_locked(folder)
    assert not is_locked(folder) and not [*folder.iterdir()]


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Before it is opened, and after."""
    folder, before = tmp_path / "folder", {os.open: 2, fcntl.flock: 2}

    def removing(original):
        def wrapped(*arguments):
            before[original] -= 1
            if before[original] >= 0:
                folder.rmdir()
            return original(*arguments)

        return wrapped

    monkeypatch.setattr(os, "open", removing(os.open))
    monkeypatch.setattr(fcntl, "flock", removing(fcntl.flock))
    with folder_lock(folder):
        assert folder.is_dir() and is_locked(folder)
    assert max(before.values()) < 0


def test_a_forked_process_does_not_keep_it(tmp_path):
    forked, end = os.pipe(), os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if not child:
            os.write(forked[1], b".")
            os.read(end[0], 1)
            os._exit(0)
        os.read(forked[0], 1)
    try:
        assert not is_locked(tmp_path)
    finally:
        os.write(end[1], b".")
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_may_lock_for_itself(tmp_path):
    child = os.fork()
    if not child:
        try:
            with folder_lock(tmp_path):
                os._exit(0 if is_locked(tmp_path) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def network_disk(monkeypatch):
    """One that locks only what is open for writing."""
    flock = fcntl.flock

    def of_files(handle, how):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", of_files)


def test_on_a_network_disk(tmp_path, network_disk):
    folder = tmp_path / "folder"
    with folder_lock(folder):
        assert is_locked(folder)
    assert not is_locked(folder) and not [*folder.iterdir()]
    with RunFolder(tmp_path / "run").locked():
        assert is_locked(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_cache_that_cannot_be_written_is_read(tmp_path, network_disk, monkeypatch):
    before = os.open

    def read_only(path, flags, *rest):
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied")
        return before(path, flags, *rest)

    monkeypatch.setattr(os, "open", read_only)
    with folder_lock(tmp_path):
        pass


def test_a_disk_without_locks_is_named(tmp_path, monkeypatch, caplog):
    def without(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with caplog.at_level(logging.WARNING, lock.__name__), folder_lock(tmp_path):
        pass
    assert str(tmp_path) in caplog.text and "No locks available" in caplog.text
