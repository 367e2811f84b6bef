"""The cache folder, and checks of the size and content of files."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

CHUNK = 1 << 20


def cache_folder(cache: Path | None = None) -> Path:
    """The folder named, or the user's cache folder: $XDG_CACHE_HOME/longshort, else ~/.cache/longshort."""
    if cache is not None:
        return Path(cache)
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "longshort"


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
