"""Pictures of CIFAR-10 in grey, read row by row: the Image task of the Long Range Arena.

N pictures of 32 × 32 points, P = 1,024 points of one.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from numpy.typing import NDArray

from longshort.lab.data.files import new_md5
from longshort.lab.data.labelled import Labelled, LabelledSplits, Numbers, Sequences, digest
from longshort.lab.data.official import Official, from_extra, members, together, warn_if_other
from longshort.lab.data.unpack import pieces
from longshort.serial import registered

CIFAR10 = Official(
    title="CIFAR-10",
    folder="cifar10",
    address="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    put="it, or the folder cifar-10-batches-py that is in it,",
    forms="cifar-10-python.tar.gz, cifar-10-batches-py, or a folder of grey sheets: train1.png to train5.png, "
    "test.png, train_labels.npy, test_labels.npy",
)
SIDE = 32
BATCHES = {  # and their md5
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
SHEETS = [*(f"train{i}.png" for i in range(1, 6)), "test.png", "train_labels.npy", "test_labels.npy"]
CHECKSUMS = {  # of the sheets
    "train": "5e7e9f7f553c3ac70a7bfbeccbd00a503ac7d6db385b860cb64f3be25cc6b87d",
    "test": "0c7a56cd3d1e49e8256864aedc77a2034843c0459daf3a19ea2a70dfd9fae3c5",
}

Bytes = NDArray[np.uint8]
Pictures = tuple[Bytes, Numbers]  # [N, P] grey, [N] labels


@registered("Cifar10")
@dataclass(frozen=True)
class Cifar10:
    """45,000 pictures to train on, the last 5,000 of the training set for development, 10,000 for the test. A picture
    is 1,024 tokens, grey values + 1."""

    path: Path | None = None

    @property
    def name(self) -> str:
        return "CIFAR-10 in grey"

    @property
    def classes(self) -> int:
        return 10

    def splits(self) -> LabelledSplits[Labelled]:
        (train, train_labels), test = _parts(CIFAR10.home(self.path))
        first = len(train) - len(train) // 10
        return LabelledSplits(
            _labelled(train[:first], train_labels[:first]),
            _labelled(train[first:], train_labels[first:]),
            _labelled(*test),
        )


def _labelled(pictures: Bytes, labels: Numbers) -> Labelled:
    starts = np.arange(len(pictures) + 1, dtype=np.int64) * SIDE * SIDE
    return Labelled(Sequences(pictures.ravel().astype(np.int16) + 1, starts), labels)


def _parts(where: Path) -> tuple[Pictures, Pictures]:
    """The training and the test set, from the first form that is there."""
    if where.is_file():
        return _of_tar(where)
    for folder in (where, where / "cifar-10-batches-py"):
        if files := together(folder, list(BATCHES)):
            content = {name: b"".join(pieces(path)) for name, path in zip(BATCHES, files, strict=True)}
            return _of_batches(folder, content)
    if archive := together(where, ["cifar-10-python.tar.gz"]):
        return _of_tar(archive[0])
    if sheets := together(where, SHEETS):
        return _of_sheets(where, sheets)
    raise CIFAR10.missing(where)


def _of_tar(path: Path) -> tuple[Pictures, Pictures]:
    name = re.compile(rf"(?:\./)?cifar-10-batches-py/({'|'.join(BATCHES)})")
    content = {match[1]: batch for match, batch in members(path, name)}
    if lacking := [name for name in BATCHES if name not in content]:
        raise ValueError(f"{path} has no {', '.join(lacking)} in a folder cifar-10-batches-py")
    return _of_batches(path, content)


def _of_batches(where: Path, content: Mapping[str, bytes]) -> tuple[Pictures, Pictures]:
    """Five batches to train on and one for the test, in colour."""
    each = [_batch(f"{where}, {name}", content[name]) for name in BATCHES]
    pictures, labels = (np.concatenate(parts) for parts in zip(*each[:-1], strict=True))
    train, test = (pictures, labels), each[-1]
    found = {name: _md5(content[name]) for name in BATCHES}
    warn_if_other("the official CIFAR-10", where, found, BATCHES, _counts(train, test))
    return train, test


def _md5(content: bytes) -> str:
    made = new_md5()
    made.update(content)
    return made.hexdigest()


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Arrays(pickle.Unpickler):
    """Makes arrays and plain values, and nothing else: a pickle may otherwise run what it likes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of CIFAR-10 does not")
        return _ALLOWED[module, name]


def _batch(what: str, content: bytes) -> Pictures:
    try:
        batch = _Arrays(io.BytesIO(content), encoding="latin1").load()  # written by Python 2
        colours, labels = batch["data"], np.array(batch["labels"], np.int64)
    except Exception as error:  # damaged pickles raise nearly everything
        raise ValueError(f"{what} is not a batch of CIFAR-10: {error}") from error
    if not isinstance(colours, np.ndarray) or colours.dtype != np.uint8 or colours.shape != (len(labels), 3 * SIDE**2):
        raise ValueError(f"{what} is not a batch of CIFAR-10: expected [N, 3072] bytes and N labels")
    return grey(rearrange(colours, "n (rgb p) -> n p rgb", rgb=3)), _checked(what, labels, len(colours))


def grey(colours: Bytes) -> Bytes:
    """[..., 3] to [...]: 255.5 / 255 × (0.2989 R + 0.587 G + 0.114 B), rounded down: what TensorFlow does, and so
    the Long Range Arena. The grey sheets have these values at all 36 points of which we know the colours, where luma
    rounded to the nearest (PIL's) differs at 14."""
    red, green, blue = np.moveaxis(colours.astype(np.int32), -1, 0)
    return ((2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000).astype(np.uint8)


def _of_sheets(where: Path, files: list[Path]) -> tuple[Pictures, Pictures]:
    """Pictures in grey, as tiles of large ones."""
    *train_sheets, test_sheet, train_labels, test_labels = files
    train = _with_labels(np.concatenate([_tiles(path) for path in train_sheets]), train_labels)
    test = _with_labels(_tiles(test_sheet), test_labels)
    found = {"train": digest(*train), "test": digest(*test)}
    warn_if_other("the known grey CIFAR-10", where, found, CHECKSUMS, _counts(train, test))
    return train, test


def _tiles(path: Path) -> Bytes:
    image = from_extra("PIL.Image", "pillow")
    try:
        with image.open(path) as opened:
            sheet = np.asarray(opened)
    except (OSError, SyntaxError) as error:  # the latter from a broken PNG
        raise ValueError(f"{path} is not a picture that can be read: {error}") from error
    if sheet.ndim != 2 or sheet.dtype != np.uint8 or sheet.shape[0] % SIDE or sheet.shape[1] % SIDE:
        raise ValueError(
            f"{path} has shape {sheet.shape}, {sheet.dtype}: expected one grey byte a point, 32 × 32 tiles"
        )
    return rearrange(sheet, "(down y) (right x) -> (down right) (y x)", y=SIDE, x=SIDE)


def _with_labels(pictures: Bytes, path: Path) -> Pictures:
    try:
        labels = np.load(path)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not an array of labels: {error}") from error
    return pictures, _checked(str(path), labels, len(pictures))


def _checked(what: str, labels: NDArray[Any], count: int) -> Numbers:
    if labels.shape != (count,) or labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(10)).all():
        raise ValueError(f"{what}: expected {count} labels from 0 to 9, found {labels.shape} of {labels.dtype}")
    return labels.astype(np.int64)


def _counts(train: Pictures, test: Pictures) -> dict[str, int]:
    return {"train": len(train[1]), "test": len(test[1])}
