"""Optimizers as plain frozen data; each framework's trainer builds them."""

from __future__ import annotations

from dataclasses import dataclass

from longshort.serial import registered


def _check_at_least_zero(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"{name} must not be negative, got {number}")


def _check_below_one(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {number}")


@registered("AdamW")
@dataclass(frozen=True)
class AdamW:
    """Weights of two axes and more decay; biases, norms and embeddings do not."""

    lr: float = 2.5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_at_least_zero(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _check_below_one(**{"betas[0]": self.betas[0], "betas[1]": self.betas[1]})


@registered("Muon")
@dataclass(frozen=True)
class Muon:
    """Muon for hidden matrices; `rest` for embeddings, biases, norms, weights of three axes and more, and outputs.

    `outputs` names the layers, as `model.get_submodule` knows them, that turn features into scores. They learn better
    with AdamW, as embeddings do; one that is tied to an embedding needs no mention. `scale` is the root mean square of
    an update's entries at a rate of 1: with 0.2, rates that suit AdamW suit Muon.
    """

    lr: float = 2e-3
    momentum: float = 0.95
    weight_decay: float = 0.0
    iterations: int = 5
    scale: float = 0.2
    rest: AdamW = AdamW()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_at_least_zero(lr=self.lr, weight_decay=self.weight_decay, scale=self.scale)
        _check_below_one(momentum=self.momentum)
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if isinstance(self.outputs, str):
            raise ValueError(f"outputs must be a tuple of names, got the string {self.outputs!r}")
