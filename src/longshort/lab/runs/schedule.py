"""How the learning rate moves over a run: warm up, hold the peak, fall.

A pure function of the number of the update, so that there is nothing to checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from longshort.serial import registered

Kind = Literal["constant", "linear", "cosine", "polynomial"]


@registered("Schedule")
@dataclass(frozen=True)
class Schedule:
    """`warmup` updates up to the peak, the peak for a share `hold` of all others, then down to `final` of the peak.

    The fall would reach `final` just after the last update, so that with `final=0` no update is wasted on a rate of 0.
    "Warm-up, stable, decay" is `Schedule("linear", warmup=1_000, hold=0.8)`. A polynomial falls with
    the `power` of the steps that are left: fast at first, where it is above 1.
    """

    kind: Kind = "constant"
    warmup: int = 0
    final: float = 0.0
    hold: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {sorted(get_args(Kind))}, got {self.kind!r}")
        if isinstance(self.warmup, float) or self.warmup < 0:
            raise ValueError(f"warmup must be a whole number of updates and not negative, got {self.warmup}")
        for name, share in dict(final=self.final, hold=self.hold).items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is a share and must lie between 0 and 1, got {share}")
            if self.kind == "constant" and share:
                raise ValueError(f"{name} {share} means nothing to a constant schedule: choose 'linear' or 'cosine'")
        if not 0 < self.power < math.inf:
            raise ValueError(f"power must be above 0 and finite, got {self.power}")
        if self.kind != "polynomial" and self.power != 1:
            raise ValueError(f"power {self.power} means nothing to a {self.kind} schedule: choose 'polynomial'")

    def factor(self, step: int, steps: int) -> float:
        """What the peak rate is multiplied by in update number `step`, from 0, of `steps`."""
        if not 0 <= step <= steps:
            raise ValueError(f"step must lie between 0 and steps {steps}, got {step}")
        if step < self.warmup:
            return (step + 1) / self.warmup
        fall = self.warmup + self.hold * (steps - self.warmup)  # where it begins
        if self.kind == "constant" or step <= fall:
            return 1.0
        left = (steps - step) / (steps - fall)  # of the fall: from 1 to 0
        if self.kind == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
        return self.final + (1 - self.final) * left**self.power
