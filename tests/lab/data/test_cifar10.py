"""The archive, its folder and the grey sheets give the same pictures in the same order, and no pickle runs code."""

import io
import os
import pickle
import struct
import sys
import tarfile

import numpy as np
import pytest
from einops import rearrange
from PIL import Image

from longshort.lab.data import cifar10
from longshort.lab.data.cifar10 import Cifar10, grey
from longshort.lab.data.labelled import digest

TRAIN = [f"data_batch_{i}" for i in range(1, 6)]
BATCHES = [*TRAIN, "test_batch"]
EACH = 6  # pictures of a batch


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longshort" / "lra" / "cifar10"


@pytest.fixture
def batches():
    """Name → (colours [n, 3072], labels)."""
    random = np.random.default_rng(0)
    return {
        name: (random.integers(0, 256, (EACH, 3072), dtype=np.uint8), random.integers(0, 10, EACH).tolist())
        for name in BATCHES
    }


def by_python_2(colours, labels):
    """The bytes of a batch as Python 2 wrote them, whose strings are neither today's str nor bytes."""

    def string(text):
        return b"T" + struct.pack("<I", len(text)) + text

    def number(value):
        return b"J" + struct.pack("<i", value)

    rows, columns = (number(n) for n in colours.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + string(b"b") + b"\x87R"
    )
    kind = b"cnumpy\ndtype\n" + string(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + string(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    state = b"(" + number(1) + rows + columns + b"\x86" + kind + b"\x89" + string(colours.tobytes()) + b"tb"
    items = [
        string(b"batch_label") + string(b"training batch 1 of 5"),
        string(b"labels") + b"](" + b"".join(map(number, labels)) + b"e",
        string(b"data") + array + state,
        string(b"filenames") + b"](" + string(b"leptodactylus_pentadactylus_s_000004.png") + b"e",
    ]
    return b"\x80\x02}(" + b"".join(items) + b"u."


def write_batches(batches, to):
    to = to / "cifar-10-batches-py"
    to.mkdir(parents=True)
    for name, batch in batches.items():
        (to / name).write_bytes(by_python_2(*batch))
    return to


def write_tar(batches, to, prefix="cifar-10-batches-py/"):
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(to / "cifar-10-python.tar.gz", "w:gz") as archive:
        content = {"readme.html": b"", "batches.meta": b"\x80\x02}."}
        content |= {name: by_python_2(*batches[name]) for name in reversed(batches)}  # the official order is none, too
        for name, file in content.items():
            entry = tarfile.TarInfo(prefix + name)
            entry.size = len(file)
            archive.addfile(entry, io.BytesIO(file))
    return to / "cifar-10-python.tar.gz"


def greys(colours):
    return grey(rearrange(colours, "n (rgb p) -> n p rgb", rgb=3))


def write_sheets(batches, to, across=3):
    to.mkdir(parents=True, exist_ok=True)
    for name, batch in zip([*(f"train{i}" for i in range(1, 6)), "test"], BATCHES, strict=True):
        tiles = greys(batches[batch][0])
        sheet = rearrange(tiles, "(down right) (y x) -> (down y) (right x)", right=across, y=32)
        Image.fromarray(sheet).save(to / f"{name}.png")
    np.save(to / "train_labels.npy", np.array([batches[name][1] for name in TRAIN], np.uint8).ravel())
    np.save(to / "test_labels.npy", np.array(batches["test_batch"][1], np.uint8))
    return to


FORMS = {
    "folder": write_batches,
    "folder above": lambda batches, to: write_batches(batches, to).parent,
    "tar": write_tar,
    "tar with dots": lambda batches, to: write_tar(batches, to, "./cifar-10-batches-py/"),
    "folder of the tar": lambda batches, to: write_tar(batches, to).parent,
    "sheets": write_sheets,
    "sheets of one column": lambda batches, to: write_sheets(batches, to, across=1),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_pictures_row_by_row_in_their_order(batches, tmp_path, form):
    splits = Cifar10(FORMS[form](batches, tmp_path / "data")).splits()
    assert [len(part) for part in (splits.train, splits.dev, splits.test)] == [27, 3, 6]
    pictures = np.concatenate([greys(batches[name][0]) for name in BATCHES])
    labels = np.concatenate([batches[name][1] for name in BATCHES])
    parts = (splits.train, splits.dev, splits.test)  # dev is the end of the training set
    tokens = np.concatenate([part.sequences[i] for part in parts for i in range(len(part))])
    np.testing.assert_array_equal(tokens.reshape(-1, 1024) - 1, pictures)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), labels)
    expected = Cifar10(write_batches(batches, tmp_path / "expected")).splits()
    assert splits.fingerprint() == expected.fingerprint()


def test_grey_is_that_of_the_long_range_arena():
    """Points of the first training picture, a frog, and their values in the sheets."""
    colours = [[59, 62, 63], [68, 54, 42], [98, 73, 52], [16, 20, 20], [88, 51, 21], [16, 7, 0], [83, 50, 23]]
    colours += [[110, 72, 41], [129, 92, 54], [38, 20, 4], [87, 54, 25], [127, 79, 39], [71, 48, 29]]
    values = [61, 56, 78, 18, 58, 8, 56, 79, 98, 23, 60, 88, 52]
    assert grey(np.array(colours, np.uint8)).tolist() == values


def test_grey_of_grey_is_itself():
    values = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(grey(np.stack([values] * 3, axis=-1)), values)


def test_without_a_path_the_cache_is_read(batches, cache):
    write_tar(batches, cache)
    assert len(Cifar10().splits().test) == 6
    assert Cifar10().classes == 10


def test_other_sheets_are_taken_with_a_warning(batches, tmp_path, caplog, monkeypatch):
    path = write_sheets(batches, tmp_path)
    Cifar10(path).splits()
    assert "is not the known grey CIFAR-10: other content in train, test; it has 30 train, 6 test" in caplog.text
    caplog.clear()
    known = {}
    for split, names in (("train", TRAIN), ("test", ["test_batch"])):
        pictures, labels = (np.concatenate(each) for each in zip(*(batches[name] for name in names), strict=True))
        known[split] = digest(greys(pictures), labels)
    monkeypatch.setattr(cifar10, "CHECKSUMS", known)
    Cifar10(path).splits()
    assert not caplog.text


def test_other_batches_are_taken_with_a_warning(batches, tmp_path, caplog):
    Cifar10(write_tar(batches, tmp_path)).splits()
    assert "is not the official CIFAR-10: other content in data_batch_1, data_batch_2" in caplog.text
    assert "test_batch; it has 30 train, 6 test" in caplog.text


@pytest.mark.parametrize("path", [None, "nowhere", "."])
def test_missing_pictures_say_what_to_download(tmp_path, path, cache):
    where = cache if path is None else tmp_path / path
    with pytest.raises(FileNotFoundError) as refused:
        Cifar10(path and where).splits()
    message = f"CIFAR-10 is not in {where}: download https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz and put it"
    assert message in str(refused.value)


def test_half_a_set_is_refused(batches, tmp_path):
    (write_sheets(batches, tmp_path / "sheets") / "train_labels.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"but not train_labels\.npy"):
        Cifar10(tmp_path / "sheets").splits()
    (write_batches(batches, tmp_path) / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="but not data_batch_3"):
        Cifar10(tmp_path).splits()
    del batches["data_batch_2"], batches["test_batch"]
    with pytest.raises(ValueError, match=r"tar\.gz has no data_batch_2, test_batch in a folder cifar-10-batches-py"):
        Cifar10(write_tar(batches, tmp_path)).splits()


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_runs_nothing(batches, tmp_path):
    harm = pickle.dumps(dict(data=Harm(tmp_path / "harm"), labels=[]), protocol=2)
    (write_batches(batches, tmp_path) / "data_batch_4").write_bytes(harm)
    with pytest.raises(ValueError, match=r"data_batch_4 is not a batch of CIFAR-10: it asks for \w+\.mkdir"):
        Cifar10(tmp_path).splits()
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not a batch of CIFAR-10"),
        (b"no pickle", "is not a batch of CIFAR-10"),
        (pickle.dumps([1]), "is not a batch of CIFAR-10"),
        (pickle.dumps(dict(data=[], labels=[])), "is not a batch of CIFAR-10: expected .N, 3072. bytes"),
        (by_python_2(np.zeros((2, 3072), np.uint8), [1]), "is not a batch of CIFAR-10: expected .N, 3072. bytes"),
        (by_python_2(np.zeros((2, 3071), np.uint8), [1, 2]), "is not a batch of CIFAR-10: expected .N, 3072. bytes"),
        (by_python_2(np.zeros((2, 3072), np.uint8), [1, 10]), "expected 2 labels from 0 to 9"),
    ],
)
def test_a_bad_batch_is_named(batches, tmp_path, content, message):
    (write_batches(batches, tmp_path) / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=f"cifar-10-batches-py, test_batch.*{message}"):
        Cifar10(tmp_path).splits()


@pytest.mark.parametrize("damage", [lambda tar: tar[:-3000], lambda tar: b"no archive", lambda tar: b""])
def test_a_damaged_archive_is_named(batches, tmp_path, damage):
    path = write_tar(batches, tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz is damaged, or not a tar archive: [^\n]+$"):
        Cifar10(path).splits()


@pytest.mark.parametrize("shape", [(64, 95), (64, 96, 3)])
def test_a_sheet_of_another_kind_is_named(batches, tmp_path, shape):
    Image.fromarray(np.zeros(shape, np.uint8)).save(write_sheets(batches, tmp_path) / "train2.png")
    with pytest.raises(ValueError, match=r"train2\.png has shape .*: expected one grey byte a point, 32 × 32 tiles"):
        Cifar10(tmp_path).splits()


@pytest.mark.parametrize("damage", [lambda png: png[:-3000], lambda png: b"no picture"])
def test_a_sheet_that_is_no_picture_is_named(batches, tmp_path, damage):
    path = write_sheets(batches, tmp_path) / "test.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"test\.png is not a picture"):
        Cifar10(tmp_path).splits()


@pytest.mark.parametrize("labels", [np.zeros(5, np.uint8), np.full(6, 10), np.zeros(6), np.array([None] * 6)])
def test_bad_labels_are_named(batches, tmp_path, labels):
    np.save(write_sheets(batches, tmp_path) / "test_labels.npy", labels)
    with pytest.raises(
        ValueError, match=r"test_labels\.npy(: expected 6 labels from 0 to 9| is not an array of labels)"
    ):
        Cifar10(tmp_path).splits()


def test_without_pillow_the_user_is_told_what_to_install(batches, tmp_path, monkeypatch):
    write_sheets(batches, tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"needs pillow: pip install 'longshort\[data\]'"):
        Cifar10(tmp_path).splits()
