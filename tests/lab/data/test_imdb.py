"""All forms of the reviews give the same arrays, and what is held out is not trained on."""

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from longshort.lab.data import imdb
from longshort.lab.data.imdb import Imdb

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
SENTIMENTS = ("neg", "pos")


def some_reviews():
    """Split → [(label, text)]: 20 of each label to train on, 3 for the test, in no order; one comes twice."""
    random = np.random.default_rng(0)
    words = ["good", "bad", "né", "“film”", "\n", '"', "<br />"]

    def review(label):
        return label, " ".join(random.choice(words, random.integers(1, 30)))

    train, test = ([review(label) for label in (1, 0) * count] for count in (20, 3))
    return {"train": [*train[1:], train[1]], "test": test}


@pytest.fixture
def reviews():
    return some_reviews()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longshort" / "lra" / "imdb"


def names(reviews):
    """The files of aclImdb, what is not wanted among them."""
    yield "README", "Large Movie Review Dataset"
    yield "imdb.vocab", "good"
    yield "train/unsup/0_0.txt", "neither"
    yield "train/labeledBow.feat", "9 0:9"
    yield "train/urls_pos.txt", "http"
    for split, each in reviews.items():
        for number, (label, text) in enumerate(each):
            yield f"{split}/{SENTIMENTS[label]}/{number}_9.txt", text


def write_folder(reviews, to):
    for name, text in names(reviews):
        path = to / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return to / "aclImdb"


def write_tar(reviews, to, prefix="aclImdb/"):
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(to / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for name, text in names(reviews):
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return to / "aclImdb_v1.tar.gz"


def write_lines(reviews, to, suffix=""):
    to.mkdir(parents=True, exist_ok=True)
    for split, each in reviews.items():
        lines = [json.dumps(dict(id=i, label=label, text=text)) for i, (label, text) in enumerate(each)]
        (to / f"{split}.jsonl{suffix}").write_bytes(PACK[suffix]("".join(f"{line}\n" for line in lines).encode()))
    return to


def write_parquet(reviews, to, parts=2):
    to.mkdir(parents=True, exist_ok=True)
    for split, each in {**reviews, "unsupervised": [(-1, "neither")]}.items():
        for part in range(parts):
            labels, texts = zip(*each[part::parts], strict=True) if each[part::parts] else ((-1,), ("",))
            table = pyarrow.table(dict(text=texts, label=labels))
            parquet.write_table(table, to / f"{split}-{part:05}-of-{parts:05}.parquet")
    return to


FORMS = {
    "folder": write_folder,
    "folder above": lambda reviews, to: write_folder(reviews, to).parent,
    "tar": write_tar,
    "tar with dots": lambda reviews, to: write_tar(reviews, to, "./aclImdb/"),
    "folder of the tar": lambda reviews, to: write_tar(reviews, to).parent,
    **{f"lines{suffix}": lambda reviews, to, suffix=suffix: write_lines(reviews, to, suffix) for suffix in PACK},
    "parquet": write_parquet,
    "parquet, plain_text": lambda reviews, to: write_parquet(reviews, to / "plain_text").parent,
    "parquet, data": lambda reviews, to: write_parquet(reviews, to / "data", parts=1).parent,
}


def texts_of(part):
    return [(part.sequences[i] - 1).astype(np.uint8).tobytes() for i in range(len(part))]


def items_of(part):
    return list(zip(part.labels.tolist(), texts_of(part), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_reviews_by_label_and_text(reviews, tmp_path, form):
    splits = Imdb(FORMS[form](reviews, tmp_path / "data")).splits()
    for split, part in (("train", splits.train), ("test", splits.test)):
        assert items_of(part) == sorted((label, text.encode()) for label, text in reviews[split])
    assert splits.dev is splits.test
    expected = Imdb(write_lines(reviews, tmp_path / "expected")).splits()
    assert splits.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("share, counts", [(0.1, (2, 2)), (0.5, (10, 10))])
def test_what_is_held_out_is_balanced_and_not_trained_on(reviews, tmp_path, share, counts):
    reviews["train"] = [(label, f"{i} {text}") for i, (label, text) in enumerate(reviews["train"])]  # none twice
    path = write_lines(reviews, tmp_path)
    whole, splits = Imdb(path).splits(), Imdb(path, share).splits()
    assert tuple(np.bincount(splits.dev.labels)) == counts
    assert not set(texts_of(splits.dev)) & set(texts_of(splits.train))
    assert sorted(items_of(splits.dev) + items_of(splits.train)) == items_of(whole.train)
    assert splits.test.fingerprint() == whole.test.fingerprint()
    assert Imdb(path, share).splits().fingerprint() == splits.fingerprint()


def test_what_is_held_out_comes_from_all_over(reviews, tmp_path):
    reviews["train"] = [(i % 2, f"{i:03}") for i in range(400)]
    dev = Imdb(write_lines(reviews, tmp_path), 0.1).splits().dev
    each = np.array([int(text) for text in texts_of(dev)])
    assert len(each) == 40 and 150 < each.mean() < 250 and each.std() > 80


@pytest.mark.parametrize("share", [-0.1, 1.0, 10])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match=f"held_out is {share}, not a share"):
        Imdb(held_out=share)


def test_a_share_too_small_for_the_set_is_refused(reviews, tmp_path):
    with pytest.raises(ValueError, match=r"held_out 0\.01 of 40 training reviews leaves a label without any"):
        Imdb(write_lines(reviews, tmp_path), 0.01).splits()


def test_another_set_is_taken_with_a_warning(reviews, tmp_path, caplog, monkeypatch):
    path = write_lines(reviews, tmp_path)
    splits = Imdb(path).splits()
    assert "is not the official IMDb set: other content in train, test; it has 40 train, 6 test" in caplog.text
    caplog.clear()
    known = {"train": splits.train.fingerprint(), "test": splits.test.fingerprint()}
    monkeypatch.setattr(imdb, "CHECKSUMS", known)
    Imdb(path).splits()
    assert not caplog.text


def test_without_a_path_the_cache_is_read(reviews, cache):
    write_tar(reviews, cache)
    assert len(Imdb().splits().train) == 40
    assert Imdb().classes == 2


@pytest.mark.parametrize("path", [None, "nowhere", "."])
def test_missing_reviews_say_what_to_download(tmp_path, path, cache):
    where = cache if path is None else tmp_path / path
    with pytest.raises(FileNotFoundError) as refused:
        Imdb(path and where).splits()
    message = str(refused.value)
    assert (
        f"IMDb is not in {where}: download https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz" in message
    )
    assert "or say where you have it with path= or --data" in message


def test_half_a_set_is_refused(reviews, tmp_path):
    (write_lines(reviews, tmp_path / "lines") / "test.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"lines has train\.jsonl, but not test\.jsonl"):
        Imdb(tmp_path / "lines").splits()
    folder = write_folder(reviews, tmp_path)
    for path in (folder / "test" / "neg").iterdir():
        path.unlink()
    (folder / "test" / "neg").rmdir()
    with pytest.raises(FileNotFoundError, match="neg is not there: aclImdb has train and test with pos and neg"):
        Imdb(folder).splits()
    for path in write_parquet(reviews, tmp_path / "parquet").glob("test-*"):
        path.unlink()
    with pytest.raises(ValueError, match="parquet has no test reviews"):
        Imdb(tmp_path / "parquet").splits()


@pytest.mark.parametrize(
    "line",
    ["", "no json", '{"text": "a"}', '{"label": 1}', '{"text": 3, "label": 1}', '{"text": "a", "label": 2}', "[]"],
)
def test_a_bad_line_is_named(reviews, tmp_path, line):
    with (write_lines(reviews, tmp_path) / "train.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=r'train\.jsonl, line 41: expected {"text": ..., "label": 0 or 1}'):
        Imdb(tmp_path).splits()


@pytest.mark.parametrize("columns", [dict(text=["a"]), dict(text=["a"], label=[-1]), dict(text=[1], label=[1])])
def test_a_bad_parquet_file_is_named(reviews, tmp_path, columns):
    write_parquet(reviews, tmp_path)
    parquet.write_table(pyarrow.table(columns), tmp_path / "test-00001-of-00002.parquet")
    with pytest.raises(
        ValueError, match=r"test-00001-of-00002\.parquet: expected a parquet file with columns text and"
    ):
        Imdb(tmp_path).splits()


def test_a_file_that_is_no_parquet_is_named(reviews, tmp_path):
    (write_parquet(reviews, tmp_path) / "train-00000-of-00002.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"train-00000-of-00002\.parquet: expected a parquet file"):
        Imdb(tmp_path).splits()


def test_without_pyarrow_the_user_is_told_what_to_install(reviews, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"needs pyarrow: pip install 'longshort\[data\]'"):
        Imdb(write_parquet(reviews, tmp_path)).splits()


@pytest.mark.parametrize("damage", [lambda tar: tar[:-300], lambda tar: b"no archive"])
def test_a_damaged_archive_is_named(reviews, tmp_path, damage):
    path = write_tar(reviews, tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz is damaged, or not a tar archive"):
        Imdb(path).splits()


def test_an_archive_of_something_else_is_refused(reviews, tmp_path):
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz has no train reviews"):
        Imdb(write_tar(reviews, tmp_path, "other/")).splits()
