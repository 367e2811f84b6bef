"""The content of a file, packed as .gz, .xz, .bz2 or .zip or not at all: in pieces, or unpacked once into a file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from longshort.lab.data.files import CHUNK, check_md5, check_size, check_space, has_size, new_md5
from longshort.lab.data.progress import Tell, progress_bar, silent
from longshort.lab.runs.files import whole_file
from longshort.lab.runs.lock import folder_lock


def _plain(raw: IO[bytes]) -> IO[bytes]:
    return raw


def _only_file(raw: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(raw)
    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise ValueError(f"{raw.name} holds {len(names)} files, not one: unpack it by hand and pass what you need")
    return archive.open(names[0])


_OPEN: dict[str, Callable[[IO[bytes]], Any]] = {
    ".zip": _only_file,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
PACKED = tuple(_OPEN)
_DAMAGE = (EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED


def pieces(path: Path, tell: Tell = silent, before: int = 0) -> Iterator[bytes]:
    """The content of a file, packed or plain, front to back; `tell` hears how many of the file's own bytes are read,
    on top of those of the files before."""
    try:
        with path.open("rb") as raw, _OPEN.get(path.suffix.lower(), _plain)(raw) as stream:
            while piece := stream.read(CHUNK):
                tell(before + raw.tell())
                yield piece
    except (OSError, *_DAMAGE) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault, not the content's
            raise
        raise ValueError(f"{path} is damaged, or not a {path.suffix} file: {error}") from error


def unpack(packed: Path, to: Path, *, size: int | None = None, md5: str | None = None, progress: bool = True) -> Path:
    """Unpacks into `to`, which appears only when whole and as expected; if it is there already, nothing is done."""
    with folder_lock(to.parent):
        if not has_size(to, size):
            check_space(to.parent, size or 0)
            with progress_bar(f"unpacking {packed.name}", packed.stat().st_size, show=progress) as tell:
                _write(pieces(packed, tell), to, packed, size, md5)
    return to


def _write(content: Iterator[bytes], to: Path, packed: Path, size: int | None, md5: str | None) -> None:
    digest = new_md5()
    with whole_file(to) as file:
        for piece in content:
            digest.update(piece)
            file.write(piece)
            if size is not None and file.tell() > size:
                raise ValueError(f"the content of {packed} has more than the expected {size:,} bytes")
        if size is not None:
            check_size(f"the content of {packed}", file.tell(), size)
        if md5 is not None:
            check_md5(f"the content of {packed}", digest.hexdigest(), md5)
