"""Data sets that the user downloads: where they lie, in which of their forms, and whether they are the known ones."""

from __future__ import annotations

import logging
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from longshort.lab.data.files import cache_folder
from longshort.lab.data.unpack import PACKED, pieces

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Official:
    """What a user is told who does not have the set."""

    title: str
    folder: str  # below lra in the cache
    address: str
    put: str  # which part of what is there
    forms: str  # all that is understood

    def home(self, path: Path | None) -> Path:
        """Where the set lies: the path the user named, or its folder in the cache."""
        return cache_folder() / "lra" / self.folder if path is None else Path(path)

    def missing(self, where: Path) -> FileNotFoundError:
        return FileNotFoundError(
            f"{self.title} is not in {where}: download {self.address} and put {self.put} there, "
            f"or say where you have it with path= or --data ({self.forms})"
        )


def together(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """A file for each name, packed or not; None where there is none of them. Some without the others are refused."""
    found = {name: path for name in names if (path := _packed_or_not(folder / name))}
    if found and len(found) < len(names):
        there, lacking = ", ".join(found), ", ".join(name for name in names if name not in found)
        raise FileNotFoundError(f"{folder} has {there}, but not {lacking}")
    return list(found.values()) or None


def _packed_or_not(path: Path) -> Path | None:
    forms = [path, *(path.with_name(path.name + suffix) for suffix in PACKED)]
    return next((form for form in forms if form.is_file()), None)


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, packed or not, without their ends."""
    rest = b""
    for piece in pieces(path):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)
    if rest:
        yield rest


def members(path: Path, name: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """The files of a tar whose whole names match, without unpacking it."""
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                match = name.fullmatch(member.name)
                file = archive.extractfile(member) if match else None  # None for a folder
                if match and file:
                    yield match, file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault, not the content's
            raise
        reason = str(error).partition(":\n")[0]  # without what each kind of packing had to say
        raise ValueError(f"{path} is damaged, or not a tar archive: {reason}") from error


def warn_if_other(
    what: str, where: Path, found: Mapping[str, str], known: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    """Says which parts have other checksums than the known set: figures on them cannot be compared with others'."""
    other = [part for part in known if found[part] != known[part]]
    if other:
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        logger.warning("%s is not %s: other content in %s; it has %s", where, what, ", ".join(other), told)


def from_extra(module: str, package: str) -> Any:
    """A module that only some forms of the data need."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"this form of the data needs {package}: pip install 'longshort[data]'") from error
