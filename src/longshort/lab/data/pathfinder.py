"""Pathfinder: are two discs the ends of one dashed curve, or of two? Generated, or read from the official files.

An image has two long curves, which have the discs, and others that only distract. N images, or one curve of each
of them; D dashes of a curve; P = D + 2 points: its start, the middles of its dashes, its end. Lengths are in 64ths of a
pixel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshort.lab.data.generated import Counts, Draws, cached, collect
from longshort.lab.data.labelled import Labelled, LabelledSplits, Numbers, Sequences
from longshort.lab.data.progress import progress_bar
from longshort.serial import registered

logger = logging.getLogger(__name__)

Points = NDArray[np.int32]  # [2, N, P]: x and y
Headings = NDArray[np.int32]  # [N, D]
Truths = NDArray[np.bool_]  # [N]
Images = NDArray[np.uint8]  # [N, SIDE, SIDE]
Room = Callable[[Points], Truths]  # whether curves are where they may be
Grey = Callable[[Points, Points], Points]  # of pixels that lie so far to the right and so far down from a middle

SIDE, UNIT, HALF = 32, 64, 32  # pixels of an image; parts of a pixel
MIDDLE = SIDE * UNIT // 2
DASH, PERIOD, THICK = 88, 144, 56  # a dash is that long and thick, and the next one begins that much later
TIP, RADIUS = 60, 84  # from the middle of the last dash to the end of the curve, where a disc may be; its radius
BORDER, APART, DISCS_APART = 104, 216, 352  # from points to the edge of the image; between points of two curves; discs
LONG, SHORT = 14, (6, 5, 4, 5, 4)  # dashes of the long curves, unless told otherwise; of those that only distract, each
# left out where it finds no room
AWAY = -(1 << 14)  # where the points of a curve are that was left out

# A heading is one of 256. Floating-point numbers are in this table only, and no entry is near the middle between two
# whole numbers, where machines could round in two ways. All else is whole numbers: images are the same everywhere.
HEADINGS, ONE = 256, 1024
_ANGLES = 2 * np.pi / HEADINGS * np.arange(HEADINGS)
DIRECTIONS = np.rint(ONE * np.stack([np.cos(_ANGLES), np.sin(_ANGLES)])).astype(np.int32)  # [2, HEADINGS]
SHARPEST, WOBBLE = 19, 9  # headings that a curve turns by from dash to dash at most, and by which the turn changes

BEGUN = 8192  # images of a chunk, of which some are finished: of the default one in five
TRIES = 64  # for each curve
FEWEST, MOST = 4, 16  # dashes of the long curves: less is a spot, more hardly ever finds room

HARD = "curv_contour_length_14"
RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
CHECKSUM = "f36da238748b23301b617472fff5140c836b0ee1f6d50db91f948fc8c17f8188"  # of the default set


@registered("Pathfinder")
@dataclass(frozen=True)
class Pathfinder:
    """Images of 32×32 as sequences of 1,024 tokens, grey value + 1, in two classes: 1 where one curve joins the discs.

    path: the official folder pathfinder32, of which the hard set is taken, or one of its sets. All its images are
    shuffled by the seed, and eight tenths are to train on, one is for development and one for the test.
    Without a path, as many images as said are generated from the seed, with `dashes` in each of the two long curves.
    balanced: where the discs are tells nothing of the label; otherwise the second curve lies anywhere, and discs that
    are near each other are likelier on one curve.
    """

    path: Path | None = None
    train: int = 160_000
    dev: int = 20_000
    test: int = 20_000
    seed: int = 0
    dashes: int = LONG
    balanced: bool = True

    def __post_init__(self) -> None:
        if self.path is not None and not self.usual:
            raise ValueError("dashes and balanced are of generated images, but a path to official ones is given")
        if not FEWEST <= self.dashes <= MOST:
            raise ValueError(f"dashes must be {FEWEST} to {MOST}, got {self.dashes}")

    @property
    def usual(self) -> bool:
        return self.dashes == LONG and self.balanced

    @property
    def kind(self) -> str:
        """In a few letters, such as 14 or 9_unbalanced."""
        return f"{self.dashes}{'' if self.balanced else '_unbalanced'}"

    @property
    def name(self) -> str:
        if self.path is not None:
            return "Pathfinder, official"
        return "Pathfinder, pictures of our own" + ("" if self.usual else f", {self.kind}")

    @property
    def classes(self) -> int:
        return 2

    def splits(self) -> LabelledSplits[Labelled]:
        if self.path is not None:
            return read_official(Path(self.path), self.seed)
        counts = Counts(self.train, self.dev, self.test)
        images = cached(
            f"pathfinder-{counts.all}-{self.seed}-{self.kind}-{CHECKSUM[:8]}",
            partial(generate, counts.all, self.seed, self.dashes, self.balanced),
            CHECKSUM if self == Pathfinder() else None,
        )
        return counts.split(images)


def sequences_of(images: Images) -> Sequences:
    """Row by row."""
    return Sequences(1 + images.reshape(-1).astype(np.int16), np.arange(0, images.size + 1, SIDE**2, dtype=np.int64))


def generate(images: int, seed: int, dashes: int = LONG, balanced: bool = True) -> Labelled:
    make = partial(chunk, dashes=dashes, balanced=balanced)
    return collect(make, images, seed, doing="generating Pathfinder", length=SIDE**2)


def chunk(draws: Draws, dashes: int, balanced: bool) -> Labelled:
    """As many images of one label as of the other.

    The curve that starts at a ends at b; the other one starts at c. A coin that is thrown when both lie puts the discs
    on a and b, or on a and c. So the curves are the same for both labels. Balanced, so are the places of the discs: c
    is the mirror image of b in the line from the middle of the image through a, and in the circle of the long curves
    no direction is likelier than another.
    """
    first, second = (balanced_curves if balanced else curves_anywhere)(draws, dashes)
    coin = draws.below(2, len(first) // 2)
    labels = np.stack([coin, 1 - coin], axis=1).reshape(-1)
    a, b, c = first.points[..., 0], first.points[..., -1], second.points[..., 0]  # [2, N]
    discs = np.stack([a, np.where(labels == 1, b, c)])  # [2 discs, 2, N]
    curves = [first, second]
    for few in SHORT:
        curves.append(place(draws, few, in_square, np.concatenate([curve.points for curve in curves], axis=-1)))
    return Labelled(sequences_of(drawn(curves, discs)), labels)


@dataclass(frozen=True, eq=False)
class Curves:
    """One curve of each image."""

    points: Points
    headings: Headings

    def __len__(self) -> int:
        return len(self.headings)

    def of(self, images: Numbers) -> Curves:
        return Curves(self.points[:, images], self.headings[images])

    @property
    def there(self) -> Truths:
        return self.points[0, :, 0] != AWAY


def balanced_curves(draws: Draws, dashes: int) -> tuple[Curves, Curves]:
    """The second one starts at the mirror image of the first one's end."""
    first = first_curves(draws, dashes, in_circle)
    c = mirrored(first.points[..., 0], first.points[..., -1])
    free = np.flatnonzero(apart(c[..., None], first.points))
    first = first.of(free)
    second = place(draws, dashes, in_circle, first.points, c[:, free])
    return even(first, second, second.there)


def curves_anywhere(draws: Draws, dashes: int) -> tuple[Curves, Curves]:
    first = first_curves(draws, dashes, in_square)
    second = place(draws, dashes, in_square, first.points)
    return even(first, second, second.there & far(first.points[..., 0], second.points[..., 0]))


def first_curves(draws: Draws, dashes: int, room: Room) -> Curves:
    """With room for a disc at both ends."""
    first = place(draws, dashes, room, np.empty((2, BEGUN, 0), np.int32))
    return first.of(np.flatnonzero(first.there & far(first.points[..., 0], first.points[..., -1])))


def even(first: Curves, second: Curves, good: Truths) -> tuple[Curves, Curves]:
    """The good ones, an even number of both."""
    both = np.flatnonzero(good)
    both = both[: len(both) // 2 * 2]
    return first.of(both), second.of(both)


def far(a: Points, b: Points) -> Truths:
    """Whether there is room for two discs."""
    return ((a - b) ** 2).sum(axis=0) >= DISCS_APART**2


def mirrored(a: Points, b: Points) -> Points:
    """[2, N]: b on the other side of the line from the middle of the image through a, as far from both as before."""
    line, seen = a.astype(np.int64) - MIDDLE, b.astype(np.int64) - MIDDLE
    mirror = 2 * (line * seen).sum(axis=0) * line // np.maximum((line * line).sum(axis=0), 1) - seen
    return (MIDDLE + mirror).astype(np.int32)


def place(draws: Draws, dashes: int, room: Room, others: Points, starts: Points | None = None) -> Curves:
    """For each image a curve that has room and keeps away from itself and from other curves, where one is found.

    It starts anywhere, or where it is told to.
    """
    images = others.shape[1]
    points = np.full((2, images, dashes + 2), AWAY, np.int32)
    headings = np.zeros((images, dashes), np.int32)
    missing = np.arange(images)
    for _ in range(TRIES):
        from_edge = draws.below(SIDE * UNIT - 2 * BORDER, 2, len(missing)).astype(np.int32)
        curves = bent(draws, dashes, BORDER + from_edge if starts is None else starts[:, missing])
        good = np.flatnonzero(room(curves.points))
        good = good[clear(curves.points[:, good])]
        good = good[apart(curves.points[:, good], others[:, missing[good]])]
        points[:, missing[good]], headings[missing[good]] = curves.points[:, good], curves.headings[good]
        missing = np.delete(missing, good)
    return Curves(points, headings)


def bent(draws: Draws, dashes: int, starts: Points) -> Curves:
    """Smooth curves: from dash to dash the heading turns, and from turn to turn the bend changes."""
    number = starts.shape[1]
    turn = draws.below(2 * SHARPEST + 1, number) - SHARPEST
    along = [draws.below(HEADINGS, number)]
    for change in draws.below(2 * WOBBLE + 1, dashes - 1, number) - WOBBLE:
        turn = np.clip(turn + change, -SHARPEST, SHARPEST)
        along.append((along[-1] + turn) % HEADINGS)
    headings = np.stack(along, axis=1).astype(np.int32)
    directions = DIRECTIONS[:, headings]  # [2, N, D]
    tips = directions * TIP // ONE
    steps = (directions[..., :-1] + directions[..., 1:]) * (PERIOD // 2) // ONE  # [2, N, D - 1]: middle to middle
    steps = np.concatenate([starts[..., None], tips[..., :1], steps, tips[..., -1:]], axis=-1)  # [2, N, P]
    return Curves(steps.cumsum(axis=-1, dtype=np.int32), headings)


def in_square(points: Points) -> Truths:
    """Whether points keep their distance from the edge."""
    return np.logical_and.reduce((points >= BORDER) & (points < SIDE * UNIT - BORDER), axis=(0, 2))


def in_circle(points: Points) -> Truths:
    """Whether they keep away from the corners, too."""
    x, y = points - MIDDLE
    return (x * x + y * y <= (MIDDLE - BORDER) ** 2).all(axis=-1)


def clear(points: Points) -> Truths:
    """Whether points of a curve keep their distance from all points of it that are not near on the way."""
    i, j = np.triu_indices(points.shape[-1], 4)
    x, y = points[..., i] - points[..., j]
    return (x * x + y * y >= APART**2).all(axis=-1)


def apart(points: Points, others: Points) -> Truths:
    """Whether points keep their distance from those of other curves."""
    x, y = points[..., :, None] - others[..., None, :]
    return (x * x + y * y >= APART**2).all(axis=(-2, -1))


def drawn(curves: list[Curves], discs: Points) -> Images:
    """White on black; a pixel that is covered in part is grey."""
    images = np.zeros((discs.shape[-1], SIDE, SIDE), np.uint8)
    middles = np.concatenate([curve.points[..., 1:-1] for curve in curves], axis=-1)
    headings = np.concatenate([curve.headings for curve in curves], axis=-1)
    image, dash = np.nonzero(middles[0] != AWAY)
    _draw(images, image, middles[:, image, dash], 2, partial(_dash, DIRECTIONS[:, headings[image, dash]]))
    for disc in discs:
        _draw(images, np.arange(len(images)), disc, 3, _disc)
    return images


def _draw(images: Images, which: Numbers, middles: Points, reach: int, grey: Grey) -> None:
    """Draws things with these middles [2, things], each in one image, on the pixels that it can reach."""
    around = np.arange(-reach, reach + 1, dtype=np.int32)
    x, y = middles[..., None] // UNIT + around  # [things, around]: pixels
    to_x, to_y = np.stack([x, y]) * UNIT + HALF - middles[..., None]
    shade = grey(to_x[:, None, :], to_y[:, :, None])  # [things, around, around]
    place = (which[:, None, None] * SIDE + y[:, :, None]) * SIDE + x[:, None, :]
    inside = ((y >= 0) & (y < SIDE))[:, :, None] & ((x >= 0) & (x < SIDE))[:, None, :]
    np.maximum.at(images.reshape(-1), place[inside], shade[inside].astype(np.uint8))


def _dash(directions: Points, x: Points, y: Points) -> Points:
    """How much of a pixel is covered, along the dash times across it."""
    right, down = directions[..., None, None]
    along = np.clip(DASH // 2 + HALF - abs(x * right + y * down) // ONE, 0, UNIT)
    across = np.clip(THICK // 2 + HALF - abs(x * down - y * right) // ONE, 0, THICK)
    return along * across * 255 // (UNIT * THICK)


def _disc(x: Points, y: Points) -> Points:
    """White up to half a pixel within the radius, black from half a pixel outside."""
    return np.clip(((RADIUS + HALF) ** 2 - x * x - y * y) * 255 // (2 * RADIUS * UNIT), 0, 255)


def read_official(path: Path, seed: int) -> LabelledSplits[Labelled]:
    """A set of the Long Range Arena."""
    folder = path if (path / "metadata").is_dir() else path / HARD
    if not (folder / "metadata").is_dir():
        raise FileNotFoundError(
            f"neither {path} nor {folder} has the folders imgs and metadata: download {RELEASE}, unpack it, and "
            "pass the folder lra_release/lra_release/pathfinder32; without a path, images of this kind are generated"
        )
    listed = list(_listed(folder))
    full = [(image, label) for image, label in listed if not image.is_file() or image.stat().st_size]
    if len(full) < len(listed):  # the release has such a file
        logger.warning("%s: %d of %d images are empty files and left out", folder, len(listed) - len(full), len(listed))
    dev = len(full) // 10
    counts = Counts(len(full) - 2 * dev, dev, dev)
    images = np.empty((len(full), SIDE, SIDE), np.uint8)
    with progress_bar("reading Pathfinder", images.nbytes) as tell:
        for i, (image, _) in enumerate(full):
            images[i] = _read_image(image)
            tell(images[: i + 1].nbytes)
    order = np.argsort(Draws(seed, 0).below(1 << 32, len(full)), kind="stable")
    labels = np.array([label for _, label in full], np.int64)
    return counts.split(Labelled(sequences_of(images[order]), labels[order]))


def _listed(folder: Path) -> Iterator[tuple[Path, int]]:
    """Images and labels, from the lines of the files metadata/<n>.npy, which are text."""
    for listing in sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name)):
        for number, line in enumerate(listing.read_text(errors="replace").splitlines(), 1):
            match line.split():
                case [where, name, _, "0" | "1" as label, *_]:
                    yield folder / where / name, int(label)
                case _:
                    raise ValueError(f"{listing}, line {number}: {line[:60]!r} is not: folder, file, number, label")


def _read_image(path: Path) -> Images:
    """[SIDE, SIDE]"""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("the images of Pathfinder are read with pillow: pip install 'longshort[data]'") from error
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
    if pixels.shape != (SIDE, SIDE):
        raise ValueError(f"{path} has {pixels.shape[1]}×{pixels.shape[0]} pixels, expected {SIDE}×{SIDE}")
    return pixels
