"""Any text of the user's as one array of bytes: a file, a packed file, a folder of files, or several of these.

A plain file is mapped where it lies; all else is joined into one file in the cache first, once.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from longshort.lab.data.files import cache_folder, has_size
from longshort.lab.data.folder import OTHER_NAME, TRAININGS, Found, find, join, look
from longshort.lab.data.progress import progress_bar
from longshort.lab.data.splits import Text
from longshort.lab.data.unpack import is_packed
from longshort.lab.runs.files import whole_file
from longshort.lab.runs.lock import folder_lock

logger = logging.getLogger(__name__)


def open_text(
    source: Path | Sequence[Path],
    *,
    cache: Path | None = None,
    pattern: str = "*",
    without: Collection[str] = (),
    progress: bool = True,
) -> Text:
    """A read-only map of the text.

    `pattern` chooses among the files below a folder by name, as in "*.py"; folders named in `without` are left out. A
    joined text is made anew when the size or the time of one of its files has changed.
    """
    sources = [Path(source)] if isinstance(source, str | os.PathLike) else [Path(path) for path in source]
    if not sources:
        raise ValueError("no source was given: pass at least one file or folder")
    for path in sources:
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: pass a text file, a packed one, or a folder of text files")
    if len(sources) == 1 and sources[0].is_file() and not is_packed(sources[0]):
        return _map(sources[0])
    return _map(_joined(sources, cache_folder(cache) / "texts", pattern, without, progress))


def _map(path: Path) -> Text:
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty: there is no text to read")
    return np.memmap(path, dtype=np.uint8, mode="r")


def _joined(sources: list[Path], cache: Path, pattern: str, without: Collection[str], progress: bool) -> Path:
    skipped: Counter[str] = Counter()
    files = _files(sources, pattern, skipped, cache, without)
    joined = cache / f"{_label(sources)}-{_key(files, pattern)}"
    with folder_lock(cache):
        if not has_size(joined, None):
            total = sum(found.size for found in files)
            with progress_bar("reading text", total, show=progress) as tell, whole_file(joined) as file:
                join(files, file, skipped, tell)
                if not file.tell():
                    raise ValueError(
                        f"no text in {', '.join(map(str, sources))} (names that match {pattern!r}): {_told(skipped)}"
                    )
            del skipped[OTHER_NAME], skipped[TRAININGS], skipped["empty"]  # by the user's own wish, and nothing lost
            if skipped.total():
                logger.warning("%s of %s: %s", joined.name, ", ".join(map(str, sources)), _told(skipped))
    return joined


def _files(
    sources: list[Path], pattern: str, skipped: Counter[str], cache: Path, without: Collection[str]
) -> list[Found]:
    files: list[Found] = []
    for source in sources:
        if source.is_dir():
            files += find(source, pattern, skipped, leave_out=cache.resolve(), without=without)
        elif found := look(source.resolve(), named=True):
            files.append(found)
        else:
            raise ValueError(f"{source} is neither a file nor a folder")
    return files


def _label(sources: list[Path]) -> str:
    """A name by which the user knows the text again in the cache."""
    return sources[0].resolve().name[:64] or "text"


def _key(files: list[Found], pattern: str) -> str:
    facts = [pattern, *((str(found.path), found.size, found.modified, found.named) for found in files)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _told(skipped: Counter[str]) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()) if count)
    return f"{skipped.total()} files skipped" + (f" ({counts})" if counts else "")
