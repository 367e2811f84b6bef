"""Lines are whole however a file is packed or cut into pieces."""

import lzma

import pytest

from longshort.lab.data import unpack
from longshort.lab.data.official import lines, together


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_are_whole_whatever_the_pieces(tmp_path, monkeypatch, size, end):
    monkeypatch.setattr(unpack, "CHUNK", size)
    expected = [b"first", b"", b"a line that is longer", b"x\ty", b"last"]
    (tmp_path / "plain").write_bytes(b"\n".join(expected) + end)
    (tmp_path / "packed.xz").write_bytes(lzma.compress(b"\r\n".join(expected) + end))
    assert list(lines(tmp_path / "plain")) == list(lines(tmp_path / "packed.xz")) == expected


def test_files_are_found_packed_or_not_the_plain_one_first(tmp_path):
    assert together(tmp_path, ["a", "b"]) is None
    (tmp_path / "a.gz").touch()
    with pytest.raises(FileNotFoundError, match="has a, but not b"):
        together(tmp_path, ["a", "b"])
    (tmp_path / "b").touch()
    (tmp_path / "b.xz").touch()
    assert together(tmp_path, ["b", "a"]) == [tmp_path / "b", tmp_path / "a.gz"]
