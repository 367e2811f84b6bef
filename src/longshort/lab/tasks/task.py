"""What the loop asks of a task, and all it knows of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

Means = Mapping[str, tuple[float, float]]  # of each metric, a sum and a count: those of all processes are added up


class Task(Protocol):
    """A frozen dataclass: with the seed and the model it decides a training, and is written down with it.

    A batch of a step is divided into `parts`, one for each process and each share of an accumulated gradient. It is a
    pure function of the step, so that a run goes on where it stopped by asking for the next step.
    """

    metric: ClassVar[str]  # of those that `evaluate` gives, the one by which a checkpoint is the best
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str]  # of what is learned from, such as tokens: what the speed counts

    def fingerprint(self) -> str:
        """Of the data, which may change behind a run's back: batches of other data would be no continuation."""
        ...

    def batch(self, step: int, part: int, parts: int) -> Any:
        """Tensors, or tuples, lists and dictionaries of tensors, on the CPU."""
        ...

    def prepare(self, batch: Any) -> Any:
        """The batch, once it is on the device: tensors, as the loss takes them. Where every step is another, it is so
        here: the loss may be captured and replayed."""
        ...

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        """The mean loss, and what this part carries on to its next step (at first None): tensors without gradients."""
        ...

    def size(self, batch: Any) -> int:
        """How much is learned from, in units."""
        ...

    def evaluate(self, model: nn.Module, part: int, parts: int) -> Means:
        """On the development set; each process takes its part."""
        ...


class Buildable(Protocol):
    """A frozen dataclass that a model is made from."""

    def build(self) -> nn.Module: ...


@runtime_checkable
class Described(Buildable, Protocol):
    """One whose models others can read from the folder of a checkpoint, given more than its own fields."""

    def files(self, model: nn.Module) -> Mapping[str, bytes]:
        """What lies there beside the weights, by name: config.json, and for example a tokenizer's files."""
        ...

    def read(self, folder: Path) -> nn.Module:
        """The model of such a folder: what `build` starts from is not needed again."""
        ...
