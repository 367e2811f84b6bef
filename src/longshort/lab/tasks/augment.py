"""What happens to pictures on the way into a model, on the device where it is: RandAugment, erasing, mixup and cutmix.

All choices are drawn beforehand, on the CPU, by a generator of the step's own: what a step trains on depends on nothing
else, and a device never has to tell what was drawn on it. Kornia does the work.

B pictures of a batch, S side, n pictures that one operation is for, R operations for each picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longshort.lab.data.images import MEAN, drawn, normalised
from longshort.lab.data.labelled import Numbers
from longshort.serial import registered

Box = tuple[int, int, int, int]  # left, top, right, bottom
Levels = Tensor  # [n], 0 to 10; those of operations that have two directions may be negative
Operation = Callable[[Tensor, Levels], Tensor]  # on [n, 3, S, S], 0 to 1
AREA, RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)  # of what is erased


@registered("Augment")
@dataclass(frozen=True)
class Augment:
    """The recipe of DeiT, PVT, ViL and so of the paper. Zeros turn a part of it off.

    Each picture gets `operations` of RandAugment, each with probability 0.5 and a level of about `level` of 10.
    erase: share of pictures with a rectangle of noise. mixup, cutmix: of their Beta distributions; a batch gets one of
    the two, and is mixed with itself in the opposite order.
    """

    operations: int = 2
    level: float = 9.0
    deviation: float = 0.5
    erase: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0

    def __post_init__(self) -> None:
        if self.operations < 0 or not 0 <= self.level <= 10 or self.deviation < 0:
            raise ValueError(
                f"operations and deviation must not be negative and level must be 0 to 10, got {self.operations}, "
                f"{self.deviation} and {self.level}"
            )
        if not 0 <= self.erase <= 1 or self.mixup < 0 or self.cutmix < 0:
            raise ValueError(
                f"erase must be a share, mixup and cutmix not negative, got {self.erase}, {self.mixup}, {self.cutmix}"
            )

    def draw(self, batch: int, side: int, draw: np.random.Generator) -> Draws:
        shape = (self.operations, batch)
        chosen = draw.integers(0, MOVES.stop, shape)
        levels = np.clip(draw.normal(self.level, self.deviation, shape), 0, 10) * draw.choice([-1.0, 1.0], shape)
        used = draw.random(shape) < 0.5
        erased = [drawn(side, side, AREA, RATIO, draw) if draw.random() < self.erase else None for _ in range(batch)]
        return Draws(np.where(used, chosen, -1), levels.astype(np.float32), erased, *self.mix(side, draw))

    def mix(self, side: int, draw: np.random.Generator) -> tuple[float, Box | None]:
        """The share of a picture that is its own, and for cutmix the rectangle that is another's."""
        cut = self.cutmix > 0 and (self.mixup == 0 or draw.random() < 0.5)
        if not cut:
            return (float(draw.beta(self.mixup, self.mixup)) if self.mixup else 1.0), None
        part = math.sqrt(1 - draw.beta(self.cutmix, self.cutmix)) * side
        y, x = draw.integers(0, side, 2)
        sides = (x - part / 2, y - part / 2, x + part / 2, y + part / 2)
        left, top, right, bottom = (int(np.clip(at, 0, side)) for at in sides)
        return 1 - (bottom - top) * (right - left) / side**2, (left, top, right, bottom)


@dataclass(frozen=True, eq=False)
class Draws:
    """What was drawn for a batch."""

    operations: Numbers  # [R, B], -1 for none
    levels: NDArray[np.float32]  # [R, B]
    erased: list[Box | None]  # [B]
    own: float  # share of each picture that is not another's
    cut: Box | None  # where it is another's


@torch.no_grad()
def augmented(images: Tensor, draws: Draws) -> Tensor:
    """Bytes [B, 3, S, S] to what the model sees, [B, 3, S, S]."""
    x = images.float() / 255
    for operations, levels in zip(draws.operations, draws.levels, strict=True):
        x = operated(x, operations, levels)
    x = normalised(x)
    for i, box in enumerate(draws.erased):
        if box is not None:
            left, top, right, bottom = box
            x[i, :, top:bottom, left:right] = torch.randn(3, bottom - top, right - left, device=x.device)
    other = x.flip(0)
    if draws.cut is None:
        return x if draws.own == 1.0 else draws.own * x + (1 - draws.own) * other
    left, top, right, bottom = draws.cut
    x[:, :, top:bottom, left:right] = other[:, :, top:bottom, left:right]
    return x


def operated(x: Tensor, operations: Numbers, levels: NDArray[np.float32]) -> Tensor:
    """One operation for each picture. They are sorted by it, so that those of one stand together."""
    order = np.argsort(operations, kind="stable")
    sent = torch.from_numpy(np.stack([order.astype(np.float32), levels[order]])).to(x.device)  # at once
    places, level = sent[0].long(), sent[1]
    x = x[places]
    ends = np.searchsorted(operations[order], np.arange(-1, MOVES[0] + 1), side="right")
    for number, operation in enumerate(OPERATIONS):
        start, end = ends[number], ends[number + 1]
        if end > start:
            x[start:end] = operation(x[start:end], level[start:end])
    if (start := ends[len(OPERATIONS)]) < len(x):
        x[start:] = moved(x[start:], matrices(operations[order][start:], levels[order][start:], x.shape[2]))
    return torch.empty_like(x).index_copy_(0, places, x.clamp_(0, 1))


# RandAugment's operations, with the ranges that are usual where all grow with their level


def kornia(part: str) -> Any:
    try:
        return import_module(f"kornia.{part}")
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed; pip install 'longshort[vision]'") from error


def autocontrast(x: Tensor, level: Levels) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, level: Levels) -> Tensor:
    """As PIL does. (Kornia's takes pictures and colours one by one: 27 times the launches.)"""
    bytes_ = (255 * x).round().long().flatten(2)  # [n, 3, S²]
    counts = torch.zeros(*x.shape[:2], 256, device=x.device).scatter_add_(2, bytes_, torch.ones_like(x).flatten(2))
    below = counts.cumsum(2) - counts
    brightest = counts.gather(2, bytes_.amax(2, keepdim=True))
    step = ((counts.sum(2, keepdim=True) - brightest) / 255).floor()
    spread = ((below + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(max=255)
    table = torch.where(step > 0, spread, torch.arange(256.0, device=x.device))
    return table.gather(2, bytes_).view_as(x) / 255


def invert(x: Tensor, level: Levels) -> Tensor:
    return 1 - x


def posterize(x: Tensor, level: Levels) -> Tensor:
    """To 4 bits and fewer."""
    step = 2.0 ** (8 - (4 - (0.4 * level.abs()).floor()))[:, None, None, None]
    return (255 * x / step).floor() * step / 255


def solarize(x: Tensor, level: Levels) -> Tensor:
    """Inverts what is brighter than a threshold."""
    return torch.where(255 * x < 256 - (25.6 * level.abs()).floor()[:, None, None, None], x, 1 - x)


def solarize_add(x: Tensor, level: Levels) -> Tensor:
    """Makes what is dark brighter."""
    return torch.where(255 * x < 128, x + (11 * level.abs()).floor()[:, None, None, None] / 255, x)


def colour(x: Tensor, level: Levels) -> Tensor:
    return blended(grey(x).expand_as(x), x, level)


def contrast(x: Tensor, level: Levels) -> Tensor:
    return blended(grey(x).mean((2, 3), keepdim=True).expand_as(x), x, level)


def brightness(x: Tensor, level: Levels) -> Tensor:
    return blended(torch.zeros_like(x), x, level)


def sharpness(x: Tensor, level: Levels) -> Tensor:
    return kornia("enhance").sharpness(x, factor(level))


def grey(x: Tensor) -> Tensor:
    red, green, blue = x.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def factor(level: Levels) -> Tensor:
    return 1 + 0.09 * level


def blended(without: Tensor, x: Tensor, level: Levels) -> Tensor:
    return torch.lerp(without, x, factor(level)[:, None, None, None])


def matrices(moves: Numbers, levels: NDArray[np.float32], side: int) -> Tensor:
    """[n, 2, 3]: where each point (x, y) of a picture goes, which is turned, sheared or shifted about its middle."""
    none, angle, slope, way = np.zeros_like(levels), np.deg2rad(3 * levels), 0.03 * levels, 0.045 * levels * side
    turn, shear_x, shear_y, right, down = (np.where(moves == number, 1.0, 0.0) for number in MOVES)
    a, d = np.cos(angle * turn), np.cos(angle * turn)
    b, c = np.sin(angle * turn) + slope * shear_x, -np.sin(angle * turn) + slope * shear_y
    middle = (side - 1) / 2
    x, y = (middle - middle * (p + q) + way * shift for p, q, shift in ((a, b, right), (c, d, down)))
    return torch.from_numpy(np.stack([a, b, x + none, c, d, y + none], axis=1).astype(np.float32)).view(-1, 2, 3)


def moved(x: Tensor, matrix: Tensor) -> Tensor:
    """Grey where nothing is."""
    fill, size = torch.tensor(MEAN, device=x.device), (x.shape[2], x.shape[3])
    warp = kornia("geometry.transform").warp_affine
    return warp(x, matrix.to(x.device), size, padding_mode="fill", fill_value=fill)


OPERATIONS: tuple[Operation, ...] = (
    autocontrast,
    equalize,
    invert,
    posterize,
    solarize,
    solarize_add,
    colour,
    contrast,
    brightness,
    sharpness,
)
MOVES = range(len(OPERATIONS), len(OPERATIONS) + 5)  # to turn, to shear in x and in y, to shift in x and in y
