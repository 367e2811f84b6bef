"""A text of the user's is what the files hold, in the same order every time, joined once."""

import gzip
import os
import zipfile

import pytest

from longshort.lab.data import open_text


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    """Text in four files, and beside them all that must not be read."""
    files = {
        "b.txt": b"second\n",
        "a.txt": b"first",
        "c/d.txt": b"fourth",
        "c.txt": b"third",
        "c/.hidden": b"?",
        ".git/config": b"?",
        "__pycache__/code.txt": b"?",
        "image.txt": b"\x89PNG\0\0",
        "empty.txt": b"",
    }
    for name, content in files.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "folder"


def read(source, **options):
    return open_text(source, progress=False, **options).tobytes()


def test_a_plain_file_is_mapped_as_it_is(tmp_path, cache):
    (tmp_path / "text").write_bytes(b"any bytes: \0\xff")
    text = open_text(tmp_path / "text", cache=cache)
    assert text.tobytes() == b"any bytes: \0\xff"
    assert not text.flags.writeable and not cache.exists()


@pytest.mark.parametrize("suffix", [".gz", ".zip"])
def test_a_packed_file_is_unpacked_into_the_cache(tmp_path, cache, suffix):
    packed = tmp_path / f"text{suffix}"
    if suffix == ".gz":
        packed.write_bytes(gzip.compress(b"some text"))
    else:
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("__MACOSX/._text", b"?")
            archive.writestr("folder/text", b"some text")
    assert read(packed, cache=cache) == b"some text"


def test_a_zip_of_several_files_is_refused(tmp_path, cache):
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("a", b"?")
        archive.writestr("b", b"?")
    with pytest.raises(ValueError, match=r"text.zip holds 2 files, not one: unpack it by hand"):
        read(tmp_path / "text.zip", cache=cache)


def test_a_folder_is_its_text_files_sorted_by_path(folder, cache):
    assert read(folder, cache=cache) == b"first\nsecond\nthird\nfourth"


def test_a_pattern_chooses_by_name(folder, cache):
    assert read(folder, cache=cache, pattern="[cd].txt") == b"third\nfourth"
    assert read(folder, cache=cache, pattern="*.txt") == read(folder, cache=cache)


def test_several_sources_are_joined_in_the_order_given(folder, tmp_path, cache):
    (tmp_path / "more.gz").write_bytes(gzip.compress(b"packed"))
    sources = [tmp_path / "more.gz", folder / "c", folder / "a.txt"]
    assert read(sources, cache=cache) == b"packed\nfourth\nfirst"


def test_a_second_call_does_not_join_again(folder, cache):
    read(folder, cache=cache)
    (joined,) = (cache / "texts").iterdir()
    before = joined.stat()
    read(folder, cache=cache)
    assert (joined.stat().st_ino, joined.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_file_is_read_anew(folder, cache):
    read(folder, cache=cache)
    (folder / "a.txt").write_bytes(b"FIRST")
    os.utime(folder / "a.txt", ns=(0, 12345))
    assert read(folder, cache=cache) == b"FIRST\nsecond\nthird\nfourth"


def test_a_cache_inside_the_folder_is_not_read(folder):
    before = read(folder, cache=folder)
    (folder / "a.txt").write_bytes(b"FIRST!")
    assert read(folder, cache=folder) == before.replace(b"first", b"FIRST!")


def test_links_do_not_lead_out_nor_round_nor_repeat(folder, tmp_path, cache):
    (tmp_path / "outside.txt").write_bytes(b"?")
    (folder / "out.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "gone.txt").symlink_to(folder / "nothing.txt")
    (folder / "again.txt").symlink_to(folder / "b.txt")
    (folder / "z.txt").symlink_to(folder / ".git" / "config")  # inside, and found nowhere else
    assert read(folder, cache=cache) == b"first\nsecond\nthird\nfourth\n?"


def test_what_is_left_out_is_told_once(folder, cache, caplog):
    os.mkfifo(folder / "pipe.txt")  # to open it would wait for ever
    for _ in range(2):
        read(folder, cache=cache, pattern="*.txt")
    assert [record.message.split(": ")[-1] for record in caplog.records] == ["2 files skipped (1 binary, 1 unreadable)"]


def test_a_folder_without_text_says_what_was_skipped(folder, cache):
    with pytest.raises(ValueError, match=r"no text in .*match 'i\*'\): 6 files skipped \(1 binary, 5 of another name"):
        read(folder, cache=cache, pattern="i*")
    (folder / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"no text in .*nothing .*0 files skipped"):
        read(folder / "nothing", cache=cache)
    assert list((cache / "texts").iterdir()) == []


def test_what_is_not_there_or_empty_is_refused(tmp_path, folder, cache):
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        read(tmp_path / "nowhere", cache=cache)
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        read([folder, tmp_path / "nowhere"], cache=cache)
    with pytest.raises(ValueError, match=r"empty.txt is empty"):
        read(folder / "empty.txt", cache=cache)
    with pytest.raises(ValueError, match="at least one"):
        read([], cache=cache)


def test_a_failure_in_the_middle_leaves_nothing(folder, tmp_path, cache):
    (tmp_path / "bad.gz").write_bytes(gzip.compress(os.urandom(5000))[:-900])
    with pytest.raises(ValueError, match=r"bad.gz is damaged"):
        read([folder, tmp_path / "bad.gz"], cache=cache)
    assert list((cache / "texts").iterdir()) == []


def test_folders_can_be_left_out_by_name(tmp_path, cache):
    for name in ("a/kept.txt", "a/without/lost.txt", "without/lost.txt", "without.txt"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(name)
    assert read(tmp_path / "t", cache=cache, without=("without",)) == b"a/kept.txt\nwithout.txt"
