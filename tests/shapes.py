"""A small data set of pictures: squares and stripes in colours, as files, zips or tars."""

import io
import tarfile
import zipfile

import numpy as np
from PIL import Image

KINDS = ("blue", "green", "red")


def picture(kind, seed, size=(24, 18)):
    """Noise with one strong colour."""
    draw = np.random.default_rng([KINDS.index(kind), seed])
    pixels = draw.integers(0, 80, (size[1], size[0], 3))
    pixels[:, :, 2 - KINDS.index(kind)] += 150
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image, suffix="png"):
    buffer = io.BytesIO()
    image.save(buffer, {"jpg": "JPEG"}.get(suffix, suffix.upper()))
    return buffer.getvalue()


def files(train=6, val=3, suffix="png"):
    """Name and content, in no particular order."""
    made = {}
    for split, count in (("val", val), ("train", train)):
        for kind in reversed(KINDS):
            for i in range(count):
                size = (24 + 3 * i, 18 + 5 * i)
                made[f"{split}/{kind}/{i}.{suffix}"] = encoded(picture(kind, 10 * i + (split == "val"), size), suffix)
    return made


def as_folder(folder, content):
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def as_zip(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as packed:
        for name, data in content.items():
            packed.writestr(name, data)
    return path


def as_tar(path, content):
    with tarfile.open(path, "w") as packed:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path
