"""The evaluator slot, and the function that runs evaluators on all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torch import nn

Advance = Callable[[int], Any]  # called with how much more is done
Progress = Callable[[str, float], Advance]  # of an evaluator's name and how much there is to do


class Share(NamedTuple):
    """A sum and a count. Both are added up over all processes."""

    total: float
    over: float

    @property
    def mean(self) -> float:
        return self.total / self.over


class Workers(Protocol):
    """Who takes part in an evaluation: this process is number `index` of `count`."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def total(self, numbers: Iterable[float]) -> list[float]:
        """Each number, added up over all processes."""
        ...

    def autocast(self) -> AbstractContextManager[Any]: ...


class Evaluator(Protocol):
    """A frozen dataclass: a set of examples, and what is measured on it. name: such as "dev", "test" or "insertion"."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """How much there is to do, for all processes together."""
        ...

    def run(self, model: nn.Module, processes: Workers, advance: Advance) -> Mapping[str, Share]:
        """Of each metric, the share of this process."""
        ...


def unseen(name: str, size: float) -> Advance:
    """Progress that nobody sees."""
    return lambda done: None


def with_own_names(evaluators: Iterable[Evaluator]) -> list[Evaluator]:
    """All of them; refuses two of one name, whose results could not be told apart."""
    every = list(evaluators)
    names = [evaluator.name for evaluator in every]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two evaluators are called {twice[0]!r}")
    return every


def evaluate(
    model: nn.Module, evaluators: Iterable[Evaluator], processes: Workers, progress: Progress = unseen
) -> dict[str, dict[str, Share]]:
    """By evaluator and metric, the sums and counts of all processes. The model is in eval mode."""
    results: dict[str, dict[str, Share]] = {}
    for evaluator in with_own_names(evaluators):
        with processes.autocast():
            shares = evaluator.run(model, processes, progress(evaluator.name, evaluator.size / processes.count))
        names = sorted(shares)
        totals = processes.total([number for name in names for number in shares[name]])
        summed = {name: Share(totals[2 * i], totals[2 * i + 1]) for i, name in enumerate(names)}
        if empty := [name for name, share in summed.items() if not share.over]:
            raise ValueError(f"{evaluator.name}: there is nothing that {empty[0]} could be measured on")
        results[evaluator.name] = summed
    return results


def means(results: Mapping[str, Mapping[str, Share]]) -> dict[str, float]:
    """The metrics by name. From the second evaluator on, its name is put before them."""
    first = next(iter(results), None)
    return {
        metric if name == first else f"{name} {metric}": share.mean
        for name, shares in results.items()
        for metric, share in shares.items()
    }
