"""A source gives three splits: of a known corpus 90, 5 and 5 parts of a hundred, of the user's files what they say."""

import numpy as np
import pytest

from longshort.lab.data.source import CorpusSource, FileSource


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def joined(splits):
    return np.concatenate([splits.train, splits.dev, splits.test]).tobytes()


def sizes(splits):
    return len(splits.train), len(splits.dev), len(splits.test)


def test_a_corpus_is_split_as_in_the_paper(tiny, content, tmp_path):
    (tmp_path / "tiny").write_bytes(content)
    for path in (tmp_path / "tiny", tmp_path):
        splits = CorpusSource("tiny", path).splits()
        assert sizes(splits) == (270_001, 15_000, 15_000)
        assert joined(splits) == content


def test_a_corpus_without_a_path_is_downloaded(tiny, content, site):
    assert joined(CorpusSource("tiny").splits()) == content
    assert joined(CorpusSource("tiny").splits()) == content and len(site.starts) == 1


def test_an_unknown_corpus_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="there is no corpus 'enwik7'; there are enwik8, text8"):
        CorpusSource("enwik7")


@pytest.mark.parametrize(
    "shares, expected",
    [
        ({}, (900, 50, 50)),
        (dict(dev_share=0.1), (850, 100, 50)),
        (dict(dev_share=0.0, test_share=0.25), (750, 0, 250)),
    ],
)
def test_shares_of_a_file_are_honoured(tmp_path, shares, expected):
    text = bytes(range(250)) * 4
    (tmp_path / "text").write_bytes(text)
    splits = FileSource(tmp_path / "text", **shares).splits()
    assert sizes(splits) == expected and joined(splits) == text


def test_files_of_a_folder_are_chosen(tmp_path):
    for name in ("a.py", "b.txt", "c/d.py", "without/e.py"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text(f"{name}\n" * 20)
    source = FileSource(tmp_path / "folder", "*.py", ("without",))
    assert joined(source.splits()) == b"a.py\n" * 20 + b"c/d.py\n" * 20


def test_a_file_too_short_for_its_shares_is_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"short")
    with pytest.raises(ValueError, match="too short for a dev share"):
        FileSource(tmp_path / "text").splits()
