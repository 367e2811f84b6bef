"""Each pair has the two documents that its line names, from the official files and from the reconstruction."""

import bz2
import gzip
import json
import lzma

import numpy as np
import pytest

from longshort.lab.data import aan
from longshort.lab.data.aan import Aan
from longshort.lab.data.labelled import digest

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
SPLITS = ("train", "eval", "test")
ADDRESS = "https://storage.googleapis.com/long-range-arena/lra_release.gz"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longshort" / "lra" / "aan"


@pytest.fixture
def papers():
    """Id → text, with what tempts a reader of tables: quotes, backslashes, no text at all."""
    texts = ["b'A \\'paper\\' \\xc3\\xa9\\n'", '"quoted', "Große Köpfe", "", 'b"it\'s"', "# none", "a,b;c", "  spaces "]
    return {f"P{i:02}-{i:04}": text for i, text in enumerate(texts)}


@pytest.fixture
def pairs(papers):
    """Split → [(label, id, id)]."""
    random = np.random.default_rng(0)
    ids = list(papers)
    return {
        split: [(int(random.integers(2)), *map(str, random.choice(ids, 2))) for _ in range(count)]
        for split, count in zip(SPLITS, (30, 7, 9), strict=True)
    }


def write_official(papers, pairs, to, suffix="", labels=("0", "1"), end="\n"):
    to.mkdir(parents=True, exist_ok=True)
    for split, each in pairs.items():
        lines = [f"{labels[y]}\t{a}\t{b}\t{papers[a]}\t{papers[b]}{end}" for y, a, b in each]
        (to / f"new_aan_pairs.{split}.tsv{suffix}").write_bytes(PACK[suffix]("".join(lines).encode()))
    return to


def write_reconstruction(papers, pairs, to, suffix=".xz"):
    to.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dict(id=paper, title="?", year=2000, text=text)) + "\n" for paper, text in papers.items()]
    (to / f"papers_first6k.jsonl{suffix}").write_bytes(PACK[suffix]("".join(lines).encode()))
    for split, each in pairs.items():
        lines = ["\t".join(map(str, pair)) + "\n" for pair in each]
        (to / f"pairs_{split}.tsv{suffix}").write_bytes(PACK[suffix]("".join(lines).encode()))
    return to


FORMS = {
    **{f"official{suffix}": lambda p, q, to, suffix=suffix: write_official(p, q, to, suffix) for suffix in PACK},
    "official, 1.0": lambda papers, pairs, to: write_official(papers, pairs, to, labels=("0.0", "1.0")),
    "official, Windows": lambda papers, pairs, to: write_official(papers, pairs, to, end="\r\n"),
    "official, tsv_data": lambda papers, pairs, to: write_official(papers, pairs, to / "tsv_data").parent,
    **{f"ours{suffix}": lambda p, q, to, suffix=suffix: write_reconstruction(p, q, to, suffix) for suffix in PACK},
}


def text_of(documents, i):
    return (documents[i] - 1).astype(np.uint8).tobytes().decode()


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_has_its_own_documents(papers, pairs, tmp_path, form):
    splits = Aan(FORMS[form](papers, pairs, tmp_path / "data")).splits()
    for split, part in zip(SPLITS, (splits.train, splits.dev, splits.test), strict=True):
        found = [
            (label, text_of(part.documents, a), text_of(part.documents, b))
            for label, (a, b) in zip(part.labels.tolist(), part.pairs.tolist(), strict=True)
        ]
        assert found == [(label, papers[a], papers[b]) for label, a, b in pairs[split]]


@pytest.mark.parametrize("form", FORMS)
def test_a_document_is_kept_once_for_all_splits(papers, pairs, tmp_path, form):
    splits = Aan(FORMS[form](papers, pairs, tmp_path / "data")).splits()
    assert splits.train.documents is splits.dev.documents is splits.test.documents
    assert len(splits.train.documents) == len(papers)


def test_two_texts_of_one_id_and_two_ids_of_one_text_stay_apart(tmp_path):
    texts = {"a": "same", "b": "same", "c": "other"}
    write_official(texts, {split: [(1, "a", "b"), (0, "a", "c")] for split in SPLITS}, tmp_path)
    with (tmp_path / "new_aan_pairs.test.tsv").open("a") as file:
        file.write("1\ta\tc\tnew\tother\n")
    splits = Aan(tmp_path).splits()
    assert [text_of(splits.test.documents, i) for i in range(4)] == ["same", "same", "other", "new"]
    assert splits.test.pairs.tolist() == [[0, 1], [0, 2], [3, 2]]


def test_results_on_the_reconstruction_are_called_so(papers, pairs, tmp_path):
    assert Aan(write_reconstruction(papers, pairs, tmp_path)).name == "AAN reconstruction"
    assert Aan(write_official(papers, pairs, tmp_path)).name == "AAN"  # first, where both are there
    assert Aan(tmp_path).classes == 2


def test_without_a_path_the_cache_is_read(papers, pairs, cache):
    write_official(papers, pairs, cache)
    assert Aan().name == "AAN" and len(Aan().splits().train) == 30


def test_another_reconstruction_is_taken_with_a_warning(papers, pairs, tmp_path, caplog, monkeypatch):
    path = write_reconstruction(papers, pairs, tmp_path)
    splits = Aan(path).splits()
    assert "is not the known AAN reconstruction: other content in papers, train, eval, test" in caplog.text
    assert "it has 8 papers, 30 train, 7 eval, 9 test" in caplog.text
    caplog.clear()
    parts = zip(SPLITS, (splits.train, splits.dev, splits.test), strict=True)
    known = {split: digest(part.pairs, part.labels) for split, part in parts}
    monkeypatch.setattr(aan, "CHECKSUMS", {"papers": splits.train.documents.fingerprint(), **known})
    Aan(path).splits()
    assert not caplog.text


@pytest.mark.parametrize("path", [None, "nowhere", "."])
def test_missing_pairs_say_what_to_download(tmp_path, path, cache):
    where = cache if path is None else tmp_path / path
    with pytest.raises(FileNotFoundError) as refused:
        Aan(path and where).splits()
    assert f"AAN is not in {where}: download {ADDRESS} and put new_aan_pairs" in str(refused.value)


@pytest.mark.parametrize(
    "write, lost", [(write_official, "new_aan_pairs.eval.tsv"), (write_reconstruction, "pairs_test.tsv")]
)
def test_a_lost_file_is_named(papers, pairs, tmp_path, write, lost):
    (write(papers, pairs, tmp_path, "") / lost).unlink()
    with pytest.raises(FileNotFoundError, match=f"but not {lost}"):
        Aan(tmp_path).splits()


@pytest.mark.parametrize("line", ["", "2\ta\tb\tc\td", "label\tid1\tid2\ttext1\ttext2", "1\ta\tb\tc", "yes"])
def test_a_bad_official_line_is_named(papers, pairs, tmp_path, line):
    with (write_official(papers, pairs, tmp_path) / "new_aan_pairs.eval.tsv").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r"new_aan_pairs\.eval\.tsv, line 8: expected 0 or 1 and 4 more fields"):
        Aan(tmp_path).splits()


@pytest.mark.parametrize(
    "line, message",
    [
        ("1\tP00-0000", "expected 0 or 1 and 2 more fields, tabs between them; found '1.tP00-0000' and 1 tabs"),
        ("1\tP00-0000\tX99-0000", "paper X99-0000 is not in .*papers_first6k"),
        ("1\tP00-0000\tP01-0001\tP02-0002", "paper P01-0001\tP02-0002 is not in "),
    ],
)
def test_a_bad_line_of_the_reconstruction_is_named(papers, pairs, tmp_path, line, message):
    with (write_reconstruction(papers, pairs, tmp_path, "") / "pairs_test.tsv").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=rf"pairs_test\.tsv, line 10: {message}"):
        Aan(tmp_path).splits()


@pytest.mark.parametrize(
    "line, message",
    [
        ("no json", 'expected {"id": ..., "text": ...}'),
        ('{"id": "a"}', 'expected {"id": ..., "text": ...}'),
        ('{"id": "P00-0000", "text": "other"}', "paper P00-0000 comes a second time"),
    ],
)
def test_a_bad_paper_is_named(papers, pairs, tmp_path, line, message):
    with (write_reconstruction(papers, pairs, tmp_path, "") / "papers_first6k.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=rf"papers_first6k\.jsonl, line 9: {message}"):
        Aan(tmp_path).splits()


def test_a_file_without_pairs_is_refused(papers, pairs, tmp_path):
    (write_official(papers, pairs, tmp_path) / "new_aan_pairs.test.tsv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"new_aan_pairs\.test\.tsv has no pairs"):
        Aan(tmp_path).splits()
