"""The corpora of the paper's character-level language models, enwik8 and text8, as checked files.

Raw is the text itself, packed the archive it comes in; both corpora are 100,000,000 bytes, of which the last
2 × 5,000,000 are dev and test: split(open_text(corpus("enwik8")), dev=5_000_000, test=5_000_000).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longshort.lab.data.download import DownloadError, fetch
from longshort.lab.data.files import cache_folder, check_file, has_size
from longshort.lab.data.unpack import PACKED, is_packed, unpack


@dataclass(frozen=True)
class Corpus:
    name: str
    address: str  # of a .zip that holds the raw text
    packed_size: int
    size: int
    md5: str


_KNOWN = (
    Corpus(
        name="enwik8",
        address="http://mattmahoney.net/dc/enwik8.zip",
        packed_size=36_445_475,
        size=100_000_000,
        md5="a1fa5ffddb56f4953e226637dabbb36a",
    ),
    Corpus(
        name="text8",
        address="http://mattmahoney.net/dc/text8.zip",
        packed_size=31_344_016,
        size=100_000_000,
        md5="3bea1919949baf155f99411df5fada7e",
    ),
)
CORPORA: dict[str, Corpus] = {known.name: known for known in _KNOWN}


def corpus(name: str, path: Path | None = None, *, cache: Path | None = None, progress: bool = True) -> Path:
    """The raw file of a corpus, its content checked.

    `path` is the raw file, a packed one, or a folder with either; a packed one is unpacked into the cache once.
    Without a path the corpus comes from the cache, or else from the web.
    """
    if name not in CORPORA:
        raise ValueError(f"corpus {name!r} is not known; these are: {', '.join(sorted(CORPORA))}")
    known = CORPORA[name]
    raw = cache_folder(cache) / known.name
    if path is None:
        return raw if has_size(raw, known.size) else _download(known, raw, progress)
    source = _source(known, Path(path))
    if is_packed(source):
        return unpack(source, raw, size=known.size, md5=known.md5, progress=progress)
    check_file(source, known.size, known.md5)
    return source


def _source(known: Corpus, path: Path) -> Path:
    """The file meant by a path of the user's."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not there: pass the {known.name} file, raw or packed, or its folder")
    names = [known.name, *(known.name + suffix for suffix in PACKED)]
    for name in names:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"folder {path} holds none of {', '.join(names)}")


def _download(known: Corpus, raw: Path, progress: bool) -> Path:
    packed = raw.with_name(f"{known.name}.zip")
    fetch(
        known.address,
        packed,
        size=known.packed_size,
        progress=progress,
        needed=lambda: not has_size(raw, known.size),  # another process may have unpacked it by now
    )
    if has_size(raw, known.size):
        return raw
    try:
        unpack(packed, raw, size=known.size, md5=known.md5, progress=progress)
    except ValueError as error:
        packed.unlink()  # the next call must not take it for good
        raise DownloadError(
            f"what came from {known.address} is not {known.name}: {error}. "
            "Try again later, or download it by hand and pass the path of the file."
        ) from error
    packed.unlink(missing_ok=True)
    return raw
