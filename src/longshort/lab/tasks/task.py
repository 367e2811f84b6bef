"""What the loop asks of a task, and all it knows of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from longshort.lab.evaluate import Evaluator

Split = Literal["dev", "test"]


class Task(Protocol):
    """A frozen dataclass: with the seed and the model it decides a training, and is written down with it.

    A batch of a step is divided into `parts`, one for each process and each share of an accumulated gradient. It is a
    pure function of the step, so that a run goes on where it stopped by asking for the next step.
    """

    metric: ClassVar[str]  # of the first evaluator of the development set: the one that chooses the best checkpoint
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

    def evaluators(self, split: Split) -> Iterable[Evaluator]:
        """What is measured on a split. Of the development set, the first one's metrics choose the best checkpoint."""
        ...


def check_task(task: Any) -> None:
    """Refuses what the loop could not train on."""
    names = [name for name in (*Task.__annotations__, *vars(Task)) if not name.startswith("_")]
    if missing := [name for name in names if not hasattr(task, name)]:
        raise ValueError(f"task {type(task).__name__} lacks {', '.join(missing)} (see longshort.lab.tasks.task.Task)")
