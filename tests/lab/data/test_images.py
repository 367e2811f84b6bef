"""Pictures become squares: the middle, or any part; broken ones are named, counted and skipped."""

import gc
import io
import os
import signal
import time
import weakref
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from PIL import Image
from shapes import KINDS, as_folder, encoded, files, picture

from longshort.lab.data.images import (
    ImageFolder,
    Middle,
    Stream,
    anywhere,
    drawn,
    evaluation_chunk,
    in_order,
    rectangle,
    training_chunk,
    workers_for,
)


@pytest.fixture
def source(tmp_path):
    return ImageFolder(as_folder(tmp_path / "data", files()))


def test_labels_are_the_order_of_the_classes(source):
    splits = source.splits()
    assert splits.classes == KINDS and len(splits.train) == 18 and len(splits.dev) == 9
    assert [KINDS[label] for label in splits.train.labels] == [e.kind for e in splits.train.entries]
    assert in_order(["10", "9", "1"]) == ("1", "9", "10") and in_order(["b", "a", "10"]) == ("10", "a", "b")
    assert source.name == "data"


def test_a_class_that_is_evaluated_alone_is_refused(source):
    as_folder(source.path, {"val/yellow/1.png": encoded(picture("red", 0))})
    with pytest.raises(ValueError, match=r"yellow/1\.png is of a class that is not known, 'yellow' \(1 such classes\)"):
        source.splits()


def test_other_pictures_have_another_fingerprint(source):
    before = source.splits().fingerprint()
    assert source.splits().fingerprint() == before
    (source.path / "train" / "red" / "0.png").rename(source.path / "train" / "red" / "00.png")
    assert source.splits().fingerprint() != before


def image_of(width, height):
    pixels = np.stack(np.broadcast_arrays(np.arange(width), np.arange(height)[:, None], 7), axis=2)
    return Image.fromarray(pixels.astype(np.uint8))


def test_the_middle_of_a_picture():
    made = Middle(10, 0.5)(image_of(60, 40))
    assert made.shape == (3, 10, 10) and made.dtype == np.uint8
    across, down = made[0, 0].astype(float), made[1, :, 0].astype(float)
    assert abs(across.mean() - 29.5) <= 0.6 and abs(down.mean() - 19.5) <= 0.6
    assert np.ptp(across) == pytest.approx(18, abs=1) and np.ptp(down) == pytest.approx(18, abs=1)
    assert np.array_equal(Middle(40, 1.0)(image_of(40, 40))[0, 0], np.arange(40))


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("at", [(20, 30), (7, 17), (32, 43)])
def test_where_a_pixel_is_in_the_middle(share, at):
    """Pixels know their place: across in the first colour, down in the second."""
    view, image = Middle(12, share), image_of(60, 40)
    y, x = view.place(image.size, at)
    made, pixel = view(image), 40 * share / 12
    assert abs(int(made[1, y, x]) - at[0]) <= pixel / 2 + 1 and abs(int(made[0, y, x]) - at[1]) <= pixel / 2 + 1


@pytest.mark.parametrize("at", [(4, 30), (20, 14), (35, 30), (20, 45), (-1, 30)])
def test_a_pixel_outside_of_the_middle_is_refused(at):
    with pytest.raises(ValueError, match=r"40 × 60 pixels high and wide: rows 5 to 34, columns 15 to 44"):
        Middle(12, 0.75).place((60, 40), at)


@pytest.mark.parametrize("wrong", [(0, 1.0), (8, 0.0), (8, 2.0)])
def test_a_middle_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1 pixel wide"):
        Middle(*wrong)


def test_a_package_that_is_missing_is_not_the_pictures_fault(source):
    def cut(image):
        raise ImportError("x is not installed")

    with pytest.raises(ImportError, match="x is not installed"):
        source.splits().train.read(0, cut)


def test_a_large_jpeg_is_decoded_small_and_shows_the_same():
    smooth = Image.fromarray(
        (np.add.outer(np.arange(600), np.arange(800))[..., None] // 6 + [0, 9, 20]).astype(np.uint8)
    )
    opened = Image.open(io.BytesIO(encoded(smooth, "jpg")))
    found, plain = Middle(16, 0.8)(opened).astype(float), Middle(16, 0.8)(smooth).astype(float)
    assert opened.size[0] < 800 and np.abs(found - plain).max() < 4


def test_any_part_of_a_picture():
    draw = np.random.default_rng(0)
    shares, ratios, mirrored = [], [], 0
    for _ in range(400):
        left, top, right, bottom = rectangle((90, 60), draw)
        assert 0 <= left < right <= 90 and 0 <= top < bottom <= 60
        shares.append((right - left) * (bottom - top) / 5400)
        ratios.append((right - left) / (bottom - top))
        made = anywhere(8, draw)(image_of(90, 60))
        mirrored += bool(made[0, 0, 0] > made[0, 0, -1])
    assert min(shares) >= 0.07 and max(shares) > 0.85 and 0.72 < min(ratios) < 0.8 and 1.25 < max(ratios) < 1.4
    assert 150 < mirrored < 250
    assert rectangle((300, 10), draw)[2:] == (300 / 2 + 13 / 2, 10)  # none of ten fits: the middle


def test_no_rectangle_where_none_fits():
    assert drawn(10, 10, (0.9, 1.0), (8.0, 9.0), np.random.default_rng(0)) is None


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_pictures_of_all_modes_have_three_colours(mode, tmp_path):
    made = Image.new(mode, (20, 20)) if mode == "I;16" else picture("red", 0).convert(mode)
    made.save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"))
    (name,) = os.listdir(tmp_path)
    with Image.open(tmp_path / name) as opened:
        assert Middle(8, 1.0)(opened).shape == (3, 8, 8)


@pytest.fixture
def some_broken(source):
    """Cut off, empty, and no picture at all."""
    folder = source.path / "train" / "blue"
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])
    (folder / "2.png").write_bytes(b"")
    (folder / "3.png").write_bytes(b"text")
    return source.splits().train


def test_in_the_place_of_a_broken_picture_stands_the_next(some_broken, caplog):
    chunk = training_chunk(some_broken, np.arange(6), 8, (0,))
    assert chunk.which.tolist() == [0, 4, 4, 4, 4, 5] and chunk.images.shape == (6, 3, 8, 8)
    assert [i for i, _ in chunk.broken] == [1, 2, 3]
    some_broken.note(chunk.broken), some_broken.note(chunk.broken)
    assert len(some_broken.broken) == 3
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 3 and "1.png, which cannot be read (" in said[0] and said[2].endswith("; 3 so far")
    assert "(it is no picture)" in said[1] and "(it is no picture)" in said[2]
    with pytest.raises(ValueError, match=r"none of 2 pictures can be read, such as .*1\.png"):
        training_chunk(some_broken, np.array([1, 2]), 8, (0,))


def test_broken_pictures_are_not_evaluated(some_broken):
    chunk = evaluation_chunk(some_broken, np.arange(5), Middle(8, 1.0))
    assert chunk.which.tolist() == [0, 4] and len(chunk.images) == 2 and len(chunk.broken) == 3
    none = evaluation_chunk(some_broken, np.array([1, 2]), Middle(8, 1.0))
    assert none.images.shape == (0, 3, 8, 8) and none.which.tolist() == []


def test_what_is_cut_out_depends_on_the_seed_alone(source):
    pictures = source.splits().train
    first, again, other = (training_chunk(pictures, np.arange(4), 8, seed) for seed in ((0, 1), (0, 1), (0, 2)))
    assert torch.equal(first.images, again.images) and not torch.equal(first.images, other.images)


def squared(number):
    return number * number, os.getpid()


def test_a_stream_is_made_elsewhere_in_order_and_from_anywhere():
    stream, state = Stream(squared, workers=2), torch.get_rng_state()
    made = [stream(n) for n in (3, 4, 5, 6, 3, 4)]
    assert [value for value, _ in made] == [9, 16, 25, 36, 9, 16]
    assert os.getpid() not in {process for _, process in made}
    assert torch.equal(torch.get_rng_state(), state)
    ending = Stream(squared, workers=1, last=3)
    assert [ending(n)[0] for n in (1, 2)] == [1, 4]
    assert ending(1)[1] != os.getpid()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than a small machine has processors
def test_no_more_processes_than_there_is_to_make():
    stream = Stream(squared, workers=3, last=5)
    assert [stream.loader(first).num_workers for first in (1, 3, 4)] == [3, 2, 0]
    assert stream(4) == (16, os.getpid())


def test_a_stream_in_a_circle_ends_at_once():
    """As that of a training that was stopped, whose error holds all of it."""
    stream = Stream(squared, workers=2)
    stream.itself, processes = stream, {stream(n)[1] for n in range(4)}
    ended, before = weakref.ref(stream), time.monotonic()
    del stream
    gc.collect()
    assert ended() is None and time.monotonic() - before < 4  # a process that is not told is waited for, for 5 seconds
    assert not processes & {process.pid for process in active_children()}


def failing(number):
    raise ValueError(f"number {number} cannot be made")


def test_what_goes_wrong_elsewhere_is_told_in_its_own_words():
    with pytest.raises(ValueError, match=r"^number 7 cannot be made$"):
        Stream(failing, workers=1)(7)


def test_an_interrupt_does_not_reach_who_reads():
    stream = Stream(squared, workers=1)
    _, process = stream(0)
    os.kill(process, signal.SIGINT)
    assert [stream(n)[0] for n in range(1, 6)] == [1, 4, 9, 16, 25]


def test_processors_are_shared_by_the_parts_of_a_batch(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)), raising=False)
    assert [workers_for(parts) for parts in (1, 4, 100)] == [12, 3, 1]
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert workers_for(8) == 3
