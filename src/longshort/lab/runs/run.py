"""A run: everything that decides a training, as plain frozen data that is written to run.json and read back."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from longshort.lab.runs.optimizers import AdamW, Muon
from longshort.lab.runs.schedule import Schedule
from longshort.serial import registered

ADAMW, CONSTANT = AdamW(), Schedule()


@runtime_checkable
class Fingerprinted(Protocol):
    """What a run asks of a task. Each framework's trainer asks more."""

    def fingerprint(self) -> str:
        """Of the data, which may change behind a run's back: batches of other data would be no continuation."""
        ...


@registered("Run")
@dataclass(frozen=True)
class Run:
    """`starts_from`: a run that is done first, and whose last weights this one begins with.

    precision "auto" is bf16 on a GPU that has it and fp32 elsewhere. `compile` (torch.compile) is for GPUs, and `graph`
    (a step as one CUDA graph) for one GPU and undivided batches; elsewhere they are left out.
    clip bounds the norm of the gradient. accumulate divides each batch into that many parts, one after the other.
    average: decay of a moving average of the weights, which is then evaluated and saved in their place.
    model: a frozen dataclass that a model is made from. task: what is learned; a frozen dataclass, as each framework's
    trainer wants it.
    """

    name: str
    model: Any
    task: Any
    steps: int
    optimizer: AdamW | Muon = ADAMW
    schedule: Schedule = CONSTANT
    clip: float | None = None
    average: float | None = None
    accumulate: int = 1
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    graph: bool = False
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 1000
    save_every: int = 1000
    starts_from: Run | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, Fingerprinted):
            raise ValueError(f"task must be a task, with a fingerprint of its data, got {type(self.task).__name__}")
        if not is_dataclass(self.model):
            raise ValueError(f"model must be a dataclass that a model is made from, got {type(self.model).__name__}")
        for name in ("steps", "accumulate", "log_every", "evaluate_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be from 0 to {2**31 - 1:,}, got {self.seed}")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"precision must be 'auto', 'fp32' or 'bf16', got {self.precision!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be above 0, got {self.clip}")
        if self.average is not None and not 0 <= self.average < 1:
            raise ValueError(f"average must be at least 0 and below 1, got {self.average}")
        if self.name in ("", ".", "..") or any(c in self.name for c in "/\\"):
            raise ValueError(f"name must be usable as the name of a folder, got {self.name!r}")
        if self.starts_from and self.name in (run.name for run in self.starts_from.chain):
            raise ValueError(f"a run and one it starts from are both named {self.name!r}: each needs its own folder")

    @property
    def chain(self) -> tuple[Run, ...]:
        """The runs to be done, in their order; this one is the last."""
        return (*(self.starts_from.chain if self.starts_from else ()), self)

    def with_steps(self, steps: int) -> Run:
        """The run with other steps, and a warm-up in proportion."""
        warmup = math.ceil(self.schedule.warmup * steps / self.steps)
        return replace(self, steps=steps, schedule=replace(self.schedule, warmup=warmup))


def differences(old: Any, new: Any, *, but: Collection[str] = (), at: str = "") -> list[str]:
    """What differs between two records, as "field: old, now new"; paths may, for a text may move."""
    if all(value is None or (isinstance(value, dict) and value.get("type") == "path") for value in (old, new)):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        kinds = [str(record.get("type")).rpartition(":")[2] for record in (old, new)]
        if kinds[0] != kinds[1]:
            return [f"{at} was {kinds[0]}, now {kinds[1]}"]
        changes = []
        for name in {**old, **new}:
            field = f"{at}.{name}" if at else name
            if field not in but and name != "starts_from":
                changes += differences(old.get(name), new.get(name), but=but, at=field)
        return changes
    return [] if old == new else [f"{at} was {old}, now {new}"]
