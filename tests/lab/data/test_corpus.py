"""A corpus is a checked raw file, wherever it comes from, and is unpacked once."""

import bz2
import dataclasses
import gzip
import lzma
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshort.lab.data import CORPORA, DownloadError, corpus
from longshort.lab.data.files import cache_folder

PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def pack(tiny, site, content, tmp_path):
    """Writes the tiny corpus, or other bytes, packed by suffix."""

    def packed(suffix, content=content):
        path = tmp_path / f"tiny{suffix}"
        path.write_bytes(site.files["/tiny.zip"] if suffix == ".zip" else PACK[suffix](content))
        return path

    return packed


def test_the_papers_corpora_are_known():
    assert {name: known.size for name, known in CORPORA.items()} == {"enwik8": 100_000_000, "text8": 100_000_000}


def test_a_raw_file_is_taken_where_it_lies(tiny, content, tmp_path, cache):
    path = tmp_path / "tiny"
    path.write_bytes(content)
    assert corpus("tiny", path, cache=cache) == path
    assert not cache.exists()


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".xz", ".bz2"])
def test_a_packed_file_is_unpacked_into_the_cache(pack, content, cache, suffix):
    raw = corpus("tiny", pack(suffix), cache=cache, progress=False)
    assert raw == cache / "tiny" and raw.read_bytes() == content
    assert list(cache.iterdir()) == [raw]


def test_a_second_call_does_not_unpack_again(pack, cache):
    packed = pack(".xz")
    raw = corpus("tiny", packed, cache=cache, progress=False)
    before = raw.stat()
    packed.write_bytes(b"no longer readable")
    assert corpus("tiny", packed, cache=cache) == raw
    assert (raw.stat().st_ino, raw.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_of_a_folder_the_raw_file_comes_first(pack, content, tmp_path, cache):
    folder = pack(".gz").parent
    assert corpus("tiny", folder, cache=cache, progress=False) == cache / "tiny"
    (folder / "tiny").write_bytes(content)
    assert corpus("tiny", folder, cache=cache) == folder / "tiny"


def test_without_a_path_it_is_downloaded_once(tiny, site, content, cache):
    raw = corpus("tiny", cache=cache, progress=False)
    assert raw.read_bytes() == content
    assert list(cache.iterdir()) == [raw]  # the archive is gone
    assert corpus("tiny", cache=cache) == raw and len(site.starts) == 1


def test_a_cached_file_of_the_wrong_size_is_made_anew(tiny, content, cache):
    cache.mkdir()
    (cache / "tiny").write_bytes(b"half")
    assert corpus("tiny", cache=cache, progress=False).read_bytes() == content


def test_a_download_of_other_content_is_refused_and_not_kept(tiny, cache, monkeypatch):
    monkeypatch.setitem(CORPORA, "tiny", dataclasses.replace(tiny, md5="0" * 32))
    with pytest.raises(DownloadError, match=rf"{tiny.address} is not tiny: .* md5 {tiny.md5}, expected {'0' * 32}"):
        corpus("tiny", cache=cache, progress=False)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("change, message", [(b"", "300,000 bytes, expected 300,001"), (b"?", "has md5 .*, expected ")])
def test_a_raw_file_of_other_content_is_refused(tiny, content, tmp_path, cache, change, message):
    (tmp_path / "tiny").write_bytes(content[:-1] + change)
    with pytest.raises(ValueError, match=message):
        corpus("tiny", tmp_path / "tiny", cache=cache)


@pytest.mark.parametrize(
    "change, message",
    [
        (b"", "300,000 bytes, expected 300,001"),
        (b"?", "has md5 .*, expected "),
        (b"??", "more than the expected 300,00"),
    ],
)
def test_a_packed_file_of_other_content_is_refused_and_leaves_nothing(pack, content, cache, change, message):
    with pytest.raises(ValueError, match=message):
        corpus("tiny", pack(".gz", content[:-1] + change), cache=cache, progress=False)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-5000], lambda packed: b"no archive"])
def test_a_damaged_file_is_named_and_leaves_nothing(pack, cache, suffix, damage):
    packed = pack(suffix)
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(ValueError, match=f"tiny{suffix} is damaged, or not a {suffix} file"):
        corpus("tiny", packed, cache=cache, progress=False)
    assert list(cache.iterdir()) == []


def test_interrupted_unpacking_leaves_no_raw_file(pack, cache, monkeypatch):
    def interrupt(file, size):
        raise KeyboardInterrupt

    packed = pack(".xz")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(lzma.LZMAFile, "read", interrupt)
        corpus("tiny", packed, cache=cache, progress=False)
    assert list(cache.iterdir()) == []
    assert corpus("tiny", packed, cache=cache, progress=False).exists()


def test_a_full_disk_is_told_before_unpacking(pack, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=9))
    with pytest.raises(OSError, match=r"has 9 bytes free, 300,001 are needed"):
        corpus("tiny", pack(".gz"), cache=cache, progress=False)


def test_what_is_not_there_is_named(tiny, tmp_path, cache):
    with pytest.raises(ValueError, match="corpus 'enwik7' is not known; these are: enwik8, text8, tiny"):
        corpus("enwik7")
    with pytest.raises(FileNotFoundError, match="nowhere is not there: pass the tiny file"):
        corpus("tiny", tmp_path / "nowhere", cache=cache)
    with pytest.raises(FileNotFoundError, match=r"holds none of tiny, tiny.zip, tiny.gz, tiny.xz, tiny.bz2"):
        corpus("tiny", tmp_path, cache=cache)


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "longshort"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "longshort"
    assert cache_folder(tmp_path / "mine") == tmp_path / "mine"
