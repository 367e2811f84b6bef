"""Pictures are found and read the same from folders, zips and tars, in all forms that ImageNet comes in."""

import zipfile

import pytest
from shapes import KINDS, as_folder, as_tar, as_zip, files

from longshort.lab.data.archive import entries, of_folder


def below(split, content):
    return {name.removeprefix(f"{split}/"): data for name, data in content.items() if name.startswith(f"{split}/")}


def per_class(folder, content):
    """As ImageNet is released: a tar of tars."""
    inner = {kind: {} for kind in KINDS}
    for name, data in content.items():
        inner[name.split("/")[0]][name.split("/")[1]] = data
    return {f"{kind}.tar": as_tar(folder / f"{kind}.part", own).read_bytes() for kind, own in inner.items()}


def shards(folder, split, content):
    """WebDataset's: two shards, a label beside each picture."""
    names = sorted(content)
    for number, some in enumerate((names[::2], names[1::2])):
        packed = {}
        for i, name in enumerate(some):
            key = f"{number}{i:03d}"
            packed[f"{key}.png"] = content[name]
            packed[f"{key}.cls"] = str(KINDS.index(name.split("/")[0])).encode()
        as_tar(folder / f"{split}-{number:04d}.tar", packed)


def make(form, folder):
    content = files()
    if form == "folder":
        return as_folder(folder, content)
    if form == "folder, other names":
        changed = {n.replace("train/", "train-jpeg/").replace("val/", "validation/"): d for n, d in content.items()}
        return as_folder(folder, changed)
    if form == "zip":
        return as_zip(folder / "all.zip", {f"deep/{name}": data for name, data in content.items()})
    if form == "deflated zip":
        return as_zip(folder / "all.zip", content, zipfile.ZIP_DEFLATED)
    if form == "tar":
        return as_tar(folder / "all.tar", {f"./{name}": data for name, data in content.items()})
    for split in ("train", "val"):
        own = below(split, content)
        if form == "a zip a split":
            as_zip(folder / f"{split}.zip", own)
        elif form == "a tar of tars":
            as_tar(folder / f"{split}.tar", per_class(folder, own))
        elif form == "shards":
            shards(folder, split, own)
        elif form == "tars in folders":
            (folder / split).mkdir()
            as_tar(folder / split / "a.tar", own)
    return folder


FORMS = ["folder", "folder, other names", "zip", "deflated zip", "tar", "a zip a split", "a tar of tars", "shards"]


@pytest.mark.parametrize("form", [*FORMS, "tars in folders"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_form_has_the_same_pictures(form, split, tmp_path):
    found = entries(make(form, tmp_path), split)
    expected = below(split, files())
    kinds = KINDS if form != "shards" else ("0", "1", "2")
    own = dict(zip(kinds, KINDS, strict=True))
    by_kind = {kind: sorted(d for n, d in expected.items() if n.startswith(f"{own[kind]}/")) for kind in kinds}
    assert {kind: sorted(e.read() for e in found if e.kind == kind) for kind in kinds} == by_kind
    assert [e.kind for e in found] == sorted(e.kind for e in found)


def test_what_is_no_picture_is_left_out(tmp_path):
    content = {"train/a/1.png": b"x", "train/a/notes.txt": b"x", "train/a/.hidden.png": b"x", "val/a/2.JPEG": b"x"}
    assert [e.name for e in entries(as_folder(tmp_path, content), "train")] == ["a/1.png"]
    assert [e.name for e in entries(tmp_path, "val")] == ["a/2.JPEG"]


def test_a_folder_of_ones_own(tmp_path):
    as_folder(tmp_path, {"b.png": b"1", "a/c.png": b"2"})
    assert [(e.kind, e.name, e.read()) for e in of_folder(tmp_path)] == [("", "b.png", b"1"), ("a", "a/c.png", b"2")]
    packed = as_zip(tmp_path / "x.zip", {"q/1.png": b"3"})
    assert [(e.kind, e.read()) for e in of_folder(packed)] == [("q", b"3")]
    assert str(of_folder(packed)[0]) == f"{packed}: q/1.png"


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_pictures_without_a_folder_of_their_class_are_named(form, tmp_path):
    content = {"data/train/1.png": b"x", "data/train/a/2.png": b"x"}
    path = as_folder(tmp_path, content) / "data" if form == "folder" else as_zip(tmp_path / "x.zip", content)
    with pytest.raises(ValueError, match=r"1\.png lies in no folder of its class: .* \(1 such\)"):
        entries(path, "train")


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        entries(tmp_path / "nowhere", "train")
    with pytest.raises(FileNotFoundError, match="no pictures to train on: expected a folder train or"):
        entries(tmp_path, "train")
    with pytest.raises(FileNotFoundError, match="nowhere is not there"):
        of_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no pictures"):
        of_folder(tmp_path)


@pytest.mark.parametrize("name", ["train.zip", "train.tar"])
def test_a_damaged_archive_is_named(name, tmp_path):
    (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(ValueError, match=f"{name} cannot be read as a {name[-3:]} file"):
        entries(tmp_path, "train")


@pytest.mark.parametrize("name", ["imagenette2-160.tgz", "pictures.tar.gz", "pictures.tar.xz"])
def test_a_compressed_archive_is_to_be_unpacked(name, tmp_path):
    """Imagenette is released as one."""
    (tmp_path / name).write_bytes(b"")
    for read in (of_folder, lambda path: entries(path, "train")):
        with pytest.raises(ValueError, match=f"{name} is compressed, .* unpack it"):
            read(tmp_path / name)
