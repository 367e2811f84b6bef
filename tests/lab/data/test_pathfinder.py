"""Pathfinder: one curve joins the discs where the label says so, and nothing else tells; official images are read."""

import logging
import sys

import numpy as np
import pytest
from PIL import Image

from longshort.lab.data import pathfinder
from longshort.lab.data.files import cache_folder
from longshort.lab.data.generated import Draws
from longshort.lab.data.pathfinder import (
    APART,
    AWAY,
    BORDER,
    DIRECTIONS,
    DISCS_APART,
    ONE,
    SHORT,
    SIDE,
    UNIT,
    Curves,
    Pathfinder,
    balanced_curves,
    bent,
    curves_anywhere,
    drawn,
    generate,
    in_square,
    mirrored,
    place,
)

SMALL = dict(train=50, dev=10, test=10)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(pathfinder, "BEGUN", 256)


@pytest.fixture(scope="module", params=[True, False], ids=["balanced", "anywhere"])
def made(request):
    return chunk_of(request.param)


def curves_of(draws, dashes, balanced):
    return (balanced_curves if balanced else curves_anywhere)(draws, dashes)


def chunk_of(balanced):
    """The long curves of a chunk, and its images and labels."""
    items = pathfinder.chunk(Draws(5, 0), 14, balanced)
    return *curves_of(Draws(5, 0), 14, balanced), pixels(items), items.labels


@pytest.fixture
def folder(tmp_path):
    """The hard set of the release, of 22 images: image m of folder n is all 10 n + m, its label m % 2."""
    hard = tmp_path / "pathfinder32" / "curv_contour_length_14"
    (hard / "metadata").mkdir(parents=True)
    for n in (0, 1, 10):
        (hard / "imgs" / str(n)).mkdir(parents=True)
        numbers = range(2 if n == 10 else 10)
        for m in numbers:
            image = Image.fromarray(np.full((SIDE, SIDE), 10 * n + m, np.uint8))
            image.save(hard / "imgs" / str(n) / f"sample_{m}.png")
        lines = [f"imgs/{n} sample_{m}.png {m} {m % 2} 1.8 6 2.0 5 1.5 2 14 1.0\n" for m in numbers]
        (hard / "metadata" / f"{n}.npy").write_text("".join(lines))
    return hard


def pixels(items):
    return (items.sequences.tokens - 1).astype(np.uint8).reshape(len(items), SIDE, SIDE)


def listed(items):
    """Grey values and labels of images that are of one grey."""
    assert (items.lengths == SIDE**2).all() and (np.ptp(pixels(items), axis=(1, 2)) == 0).all()
    return list(zip(pixels(items)[:, 0, 0].tolist(), items.labels.tolist(), strict=True))


def joins(image, a, b, least=10):
    """Whether one can walk from point a to point b over pixels that are not dark."""
    light, reached = image > least, np.zeros((SIDE + 2, SIDE + 2), bool)
    x, y = a // UNIT
    reached[y + 1, x + 1] = True
    for _ in range(SIDE**2):
        around = [reached[dy : dy + SIDE, dx : dx + SIDE] for dy in range(3) for dx in range(3)]
        grown = np.logical_or.reduce(around) & light
        if (grown == reached[1:-1, 1:-1]).all():
            break
        reached[1:-1, 1:-1] = grown
    x, y = b // UNIT
    return reached[y + 1, x + 1]


def test_labels_say_whether_a_curve_joins_the_discs(made):
    """Judged by the pixels alone; in some images curves come so close that this way of looking is deceived."""
    first, second, images, labels = made
    a, b, c = first.points[..., 0], first.points[..., -1], second.points[..., 0]
    others = np.where(labels == 1, b, c)
    found = [joins(images[i], a[:, i], others[:, i]) for i in range(300)]
    assert np.mean(found == (labels[:300] == 1)) > 0.95


def test_discs_are_where_the_label_says_and_nowhere_else(made):
    first, second, images, labels = made
    a, b, c = first.points[..., 0], first.points[..., -1], second.points[..., 0]
    bright = [
        np.array([_around(image, *point) for image, point in zip(images, end.T, strict=True)]) for end in (a, b, c)
    ]
    assert (bright[0] > 200).all()
    assert ((bright[1] > 200) == (labels == 1)).all() and ((bright[2] > 200) == (labels == 0)).all()


def _around(image, x, y):
    """Mean of the 2×2 pixels that are nearest to a point."""
    x, y = (x + UNIT // 2) // UNIT, (y + UNIT // 2) // UNIT
    return image[y - 1 : y + 1, x - 1 : x + 1].mean()


def test_there_are_as_many_of_one_label_as_of_the_other(made):
    assert made[-1].mean() == 0.5
    splits = Pathfinder(**SMALL).splits()
    assert [items.labels.mean() for items in (splits.train, splits.dev, splits.test)] == [0.5] * 3
    assert 10 < np.count_nonzero(np.diff(splits.train.labels)) < 45  # not in turns, either


def test_balanced_neither_the_discs_nor_the_brightness_tell_the_label():
    """Their distance is the same for both, up to rounding; all else is within 4 standard errors."""
    first, second, images, labels = chunk_of(balanced=True)
    a, b, c = (end / UNIT - SIDE / 2 for end in (first.points[..., 0], first.points[..., -1], second.points[..., 0]))
    assert abs(np.hypot(*(a - b)) - np.hypot(*(a - c))).max() < 0.05
    assert abs(np.hypot(*b) - np.hypot(*c)).max() < 0.05
    other = np.where(labels == 1, b, c)
    lit = images.reshape(len(images), -1)
    for fact in (np.hypot(*(a - other)), np.hypot(*(a + other)), lit.mean(1), (lit > 0).sum(1), *abs(other)):
        apart = fact[labels == 1].mean() - fact[labels == 0].mean()
        assert abs(apart) < 4 * fact.std() * 2 / len(fact) ** 0.5


def test_anywhere_the_discs_of_one_curve_are_nearer():
    first, second = curves_anywhere(Draws(0, 0), 9)
    a, b, c = first.points[..., 0], first.points[..., -1], second.points[..., 0]
    told, told_others = (np.histogram(np.hypot(*(a - end)), 64, (0, SIDE * UNIT * 2**0.5))[0] for end in (b, c))
    assert 0.68 < np.maximum(told, told_others).sum() / (2 * len(first)) < 0.72  # of labels, by the distance alone
    assert np.hypot(*(a - b)).mean() < np.hypot(*(a - c)).mean()


@pytest.mark.parametrize("dashes", [4, 9, 16])
def test_curves_have_as_many_dashes_as_said(dashes, small_chunks):
    for curve in curves_anywhere(Draws(0, 0), dashes):
        assert curve.headings.shape[1] == dashes
    of = [Pathfinder(**SMALL, dashes=d, balanced=b).splits().fingerprint() for d in (dashes, 5) for b in (True, False)]
    assert len(set(of)) == 4


@pytest.mark.parametrize("dashes", [3, 17])
def test_dashes_that_make_no_image_are_refused(dashes):
    with pytest.raises(ValueError, match=f"dashes must be 4 to 16, got {dashes}"):
        Pathfinder(dashes=dashes)


@pytest.mark.parametrize("settings", [dict(dashes=9), dict(balanced=False)])
def test_what_is_said_of_generated_images_is_refused_for_official_ones(folder, settings):
    with pytest.raises(ValueError, match="dashes and balanced are of generated images, but a path"):
        Pathfinder(folder, **settings)


def test_images_of_another_kind_have_another_name():
    names = [Pathfinder(dashes=d, balanced=b).name for d in (14, 9) for b in (True, False)]
    assert names[0] == "Pathfinder, pictures of our own" and len(set(names)) == 4


def test_a_mirror_image_is_as_far_from_all_on_the_line():
    a, b = np.random.default_rng(0).integers(BORDER, SIDE * UNIT - BORDER, (2, 2, 500)).astype(np.int32)
    c, middle = mirrored(a, b), SIDE * UNIT / 2
    for point in (a, np.full_like(a, middle), a * 0.3 + 0.7 * middle):
        assert abs(np.hypot(*(point - b)) - np.hypot(*(point - c))).max() < 2
    assert abs(mirrored(a, c) - b).max() <= 2
    centre = np.full((2, 1), int(middle), np.int32)
    assert (mirrored(centre, b[:, :1]) == 2 * centre - b[:, :1]).all()  # no line at all


@pytest.mark.parametrize("balanced", [True, False])
def test_curves_keep_their_distance(balanced):
    draws = Draws(2, 0)
    curves = list(curves_of(draws, 14, balanced))
    for dashes in SHORT:
        curves.append(place(draws, dashes, in_square, np.concatenate([curve.points for curve in curves], axis=-1)))
    which = np.repeat(np.arange(len(curves)), [curve.points.shape[-1] for curve in curves])
    points = np.concatenate([curve.points for curve in curves], axis=-1)  # [2, N, all points]
    near = ((points[..., :, None] - points[..., None, :]) ** 2).sum(axis=0) < APART**2  # [N, points, points]
    there = points[0] != AWAY
    assert not (near & (which[:, None] != which) & there[:, None] & there[:, :, None]).any()
    far = abs(np.subtract.outer(*[np.arange(len(which))] * 2)) > 3  # on the way
    assert not (near & (which[:, None] == which) & far & there[:, None] & there[:, :, None]).any()
    assert points[:, there].min() >= BORDER and points[:, there].max() < SIDE * UNIT - BORDER
    first, second = curves[:2]
    assert first.there.all() and second.there.all() and len(first) % 2 == 0
    for other in (first.points[..., -1], second.points[..., 0]):
        assert np.hypot(*(first.points[..., 0] - other)).min() >= DISCS_APART - 2  # mirrored to whole numbers
    assert 0.3 < np.mean([curve.there for curve in curves[2:]]) < 1  # most short ones find room


def test_curves_are_smooth_and_start_where_they_are_told():
    starts = np.full((2, 400), 700, np.int32)
    curves = bent(Draws(0, 0), 14, starts)
    assert (curves.points[..., 0] == starts).all() and curves.points.shape == (2, 400, 16)
    turns = (np.diff(curves.headings, axis=1) + 128) % 256 - 128
    assert abs(turns).max() == pathfinder.SHARPEST and abs(np.diff(turns, axis=1)).max() == pathfinder.WOBBLE
    steps = np.hypot(*np.diff(curves.points[..., 1:-1], axis=-1))
    assert abs(steps - pathfinder.PERIOD).max() < 8


def test_directions_are_rounded_alike_on_every_machine():
    angles = np.arange(256) * (2 * np.pi / 256)
    exact = ONE * np.stack([np.cos(angles), np.sin(angles)])
    assert abs(abs(exact - np.floor(exact)) - 0.5).min() > 0.01
    assert abs(DIRECTIONS - exact).max() < 0.5


@pytest.mark.parametrize("heading, across", [(0, 1), (64, 0), (128, 1), (192, 0)])
def test_a_dash_covers_what_lies_under_it(heading, across):
    """In the middle of pixel (10, 10): that one is white but for its thin edges, and the dash is symmetric."""
    middle = np.full((2, 1, 1), 10 * UNIT + UNIT // 2, np.int32)
    curve = Curves(np.repeat(middle, 3, axis=-1), np.array([[heading]], np.int32))
    image = drawn([curve], np.full((2, 2, 1), AWAY, np.int32))[0].astype(int)
    image = image.T if across == 0 else image
    expected = (pathfinder.DASH - UNIT) / 2 / UNIT * 255  # of the pixels before and after
    assert image[10, 10] == 255 and image[10, 9] == image[10, 11] == int(expected)
    assert image.sum() == 255 + 2 * int(expected)


def test_a_disc_has_the_area_of_its_radius():
    discs = np.array([[[700], [900]], [[1500], [1333]]], np.int32)
    away = Curves(np.full((2, 1, 3), AWAY, np.int32), np.zeros((1, 1), np.int32))
    image = drawn([away], discs)[0]
    area = np.pi * ((pathfinder.RADIUS / UNIT) ** 2 + 0.25)  # the grey edge has more outside than inside
    assert abs(image.sum() / 255 / (2 * area) - 1) < 0.03
    assert image[900 // UNIT, 700 // UNIT] == 255


def test_an_image_is_a_sequence_of_its_rows():
    images = np.arange(2 * SIDE**2).reshape(2, SIDE, SIDE).astype(np.uint8)
    sequences = pathfinder.sequences_of(images)
    assert sequences[1].tolist() == (images[1].reshape(-1).astype(int) + 1).tolist()
    assert sequences.lengths.tolist() == [1024, 1024] and sequences.tokens.max() == 256


def test_the_set_is_the_same_on_every_machine():
    assert generate(70, seed=0).fingerprint() == "661b525aa0b7edf572e4a68062afb2bff5ef5dc23af369fd00e81bad7023ad0c"


def test_the_same_seed_gives_the_same_set_and_it_is_generated_once(small_chunks, monkeypatch):
    first = Pathfinder(**SMALL).splits()
    assert (len(first.train), len(first.dev), len(first.test), Pathfinder().classes) == (50, 10, 10, 2)
    assert first.fingerprint() == Pathfinder(**SMALL).splits().fingerprint()
    assert first.fingerprint() != Pathfinder(**SMALL, seed=1).splits().fingerprint()
    more = Pathfinder(**SMALL | dict(train=200)).splits()
    assert more.test.fingerprint() == first.test.fingerprint() and more.dev.fingerprint() == first.dev.fingerprint()
    every = np.concatenate([pixels(items) for items in (more.train, more.dev, more.test)])
    assert len(np.unique(every, axis=0)) == 220
    monkeypatch.setattr(pathfinder, "chunk", None)
    assert first.fingerprint() == Pathfinder(**SMALL).splits().fingerprint()
    assert len(list((cache_folder() / "lra").iterdir())) == 3


def test_official_images_are_read_and_split_in_ten_parts(folder):
    splits = Pathfinder(folder).splits()
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (18, 2, 2)
    every = listed(splits.train) + listed(splits.dev) + listed(splits.test)
    assert sorted(every) == [(10 * n + m, m % 2) for n in (0, 1, 10) for m in range(2 if n == 10 else 10)]
    assert every != sorted(every)


def test_the_seed_shuffles_official_images_and_either_folder_will_do(folder):
    first = Pathfinder(folder).splits().fingerprint()
    assert Pathfinder(folder.parent).splits().fingerprint() == first
    assert Pathfinder(folder, seed=1).splits().fingerprint() != first


def test_empty_files_are_left_out_and_counted(folder, caplog):
    (folder / "imgs/1/sample_3.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        splits = Pathfinder(folder).splits()
    assert len(splits.train) + len(splits.dev) + len(splits.test) == 21
    assert "1 of 22 images are empty files and left out" in caplog.text


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda path: path.write_bytes(b"no image"), "cannot be read as an image"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "cannot be read as an image"),
        (lambda path: path.unlink(), "cannot be read as an image"),
        (lambda path: Image.new("L", (31, 32)).save(path), "has 31×32 pixels, expected 32×32"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(folder, spoil, message):
    spoil(folder / "imgs/1/sample_3.png")
    with pytest.raises(ValueError, match=rf"sample_3\.png {message}"):
        Pathfinder(folder).splits()


@pytest.mark.parametrize("line", ["imgs/1 sample_0.png 0", "imgs/1 sample_0.png 0 2 1.8", "\x93NUMPY\x01"])
def test_a_line_that_names_no_image_is_named(folder, line):
    (folder / "metadata/1.npy").write_text(f"imgs/1 sample_0.png 0 0 1.8\n{line}\n")
    with pytest.raises(ValueError, match=r"1\.npy, line 2: .* is not: folder, file, number, label"):
        Pathfinder(folder).splits()


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path):
    message = r"nowhere nor .* has the folders .*: download https://.*lra_release\.gz.*/pathfinder32; .* generated"
    with pytest.raises(FileNotFoundError, match=message):
        Pathfinder(tmp_path / "nowhere").splits()


def test_without_pillow_one_is_told_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'longshort\[data\]'"):
        Pathfinder(folder).splits()
