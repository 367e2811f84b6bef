"""Pictures in folders, zip files and tar files: which there are, and the bytes of one, from many threads at once.

A picture's class is the name of the folder that it lies in, or of the tar file inside another, as ImageNet is
released; in WebDataset's shards it is the number in the .cls file beside it.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
COMPRESSED = (".tgz", ".gz", ".xz", ".bz2", ".zst")
SPLITS = {"train": ("train", "train-jpeg", "training"), "val": ("val", "val-jpeg", "validation", "valid")}


@dataclass(frozen=True, slots=True)
class Entry:
    """A picture. file: what it is in, or itself; start: where it begins there, in bytes; name: in full, for people and
    for its order."""

    file: Path
    name: str
    kind: str  # of what it shows
    start: int = 0
    size: int | None = None
    deflated: bool = False

    def read(self) -> bytes:
        with self.file.open("rb") as file:
            file.seek(self.start)
            content = file.read(-1 if self.size is None else self.size)
        return zlib.decompress(content, wbits=-15) if self.deflated else content

    def __str__(self) -> str:
        return str(self.file) if self.size is None else f"{self.file}: {self.name}"


def entries(path: Path, split: str) -> list[Entry]:
    """All pictures of a split of the data set at `path`, in the order of their names.

    path: a zip or tar file with folders train and val in it, or a folder with such folders, with train.zip and val.zip
    or train.tar and val.tar, or with shards such as train-0000.tar.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    found = list(_below(path, split))
    if not found:
        raise FileNotFoundError(
            f"{path} has no pictures to {'train on' if split == 'train' else 'evaluate with'}: expected a folder "
            f"{' or '.join(SPLITS[split])} with a folder for each class, {split}.zip, {split}.tar, or {split}-*.tar"
        )
    if flat := [entry for entry in found if entry.kind in ("", *SPLITS[split])]:
        raise ValueError(f"{flat[0]} lies in no folder of its class: {path} must have one for each ({len(flat)} such)")
    return sorted(found, key=lambda entry: (entry.kind, entry.name))


def of_folder(path: Path) -> list[Entry]:
    """All pictures of a folder, of a zip or of a tar file, whatever their folders are called."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    found = list(_files(path) if path.is_dir() else _archive(path))
    if path.is_dir() and not found:
        found = [entry for file in sorted(path.iterdir()) if _is_archive(file) for entry in _archive(file)]
    if not found:
        raise FileNotFoundError(f"{path} has no pictures ({', '.join(SUFFIXES)})")
    return sorted(found, key=lambda entry: (entry.kind, entry.name))


def _below(path: Path, split: str) -> Iterator[Entry]:
    names = SPLITS[split]
    if path.is_file():
        yield from (entry for entry in _archive(path) if set(names) & set(PurePosixPath(entry.name).parts[:-1]))
        return
    for name in names:
        if (path / name).is_dir():
            yield from _files(path / name)
            archives = sorted(file for file in (path / name).iterdir() if _is_archive(file))
        else:
            files = sorted(file for file in path.iterdir() if _is_archive(file))
            archives = [file for file in files if file.stem == name or file.stem.startswith((f"{name}-", f"{name}_"))]
        for file in archives:
            yield from _archive(file)


def _is_archive(file: Path) -> bool:
    return file.suffix in (".zip", ".tar")


def _files(folder: Path) -> Iterator[Entry]:
    """Below a folder; its own files are of no class."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                file = Path(root, name)
                yield Entry(file, file.relative_to(folder).as_posix(), Path(root).name if Path(root) != folder else "")


def _archive(file: Path) -> Iterator[Entry]:
    if file.suffix in COMPRESSED:
        raise ValueError(f"{file} is compressed, and a picture in its middle cannot be read alone: unpack it")
    try:
        yield from _zip(file) if file.suffix == ".zip" else _tar(file)
    except (zipfile.BadZipFile, tarfile.TarError) as error:
        kind = "zip" if file.suffix == ".zip" else "tar"
        raise ValueError(f"{file} cannot be read as a {kind} file: {error}") from None


def _zip(file: Path) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as packed, file.open("rb") as raw:
        for info in packed.infolist():
            if not _is_picture(info.filename):
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{file} packs {info.filename} in an unusual way: pack it with zip -0, or unpack it")
            start, deflated = _start(raw, info), info.compress_type == zipfile.ZIP_DEFLATED
            yield Entry(file, info.filename, _folder(info.filename), start, info.compress_size, deflated)


def _start(raw: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Behind the header that stands in front of every file: 30 bytes, its name and extra fields."""
    raw.seek(info.header_offset + 26)
    head = raw.read(4)
    return info.header_offset + 30 + int.from_bytes(head[:2], "little") + int.from_bytes(head[2:], "little")


def _tar(file: Path) -> Iterator[Entry]:
    with file.open("rb") as raw:
        pictures, labels = [], {}
        for name, start, size in _members(raw, 0):
            if name.endswith(".cls"):
                raw.seek(start)
                labels[name.removesuffix(".cls")] = raw.read(size).decode().strip()
            else:
                pictures.append((name, start, size))
    for name, start, size in pictures:
        kind = labels.get(name.rpartition(".")[0], _folder(name))
        yield Entry(file, name, kind, start, size)


def _members(raw: BinaryIO, at: int, above: str = "") -> Iterator[tuple[str, int, int]]:
    """Name, start and size of the pictures and labels of the tar that begins there, and of tars in it."""
    raw.seek(at)
    with tarfile.open(fileobj=raw, mode="r:") as packed:
        for member in packed:
            name = f"{above}{member.name.removeprefix('./')}"
            if member.isfile() and (_is_picture(name) or name.endswith(".cls")):
                yield name, member.offset_data, member.size
            elif member.isfile() and name.endswith(".tar"):
                yield from _members(raw, member.offset_data, f"{name.removesuffix('.tar')}/")


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not PurePosixPath(name).name.startswith(".")


def _folder(name: str) -> str:
    return PurePosixPath(name).parent.name
