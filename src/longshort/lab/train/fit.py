"""Training in PyTorch: one loop for all tasks, which knows a Run and the Task protocol, nothing else."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from torch import Tensor, nn

from longshort.graphs import Step
from longshort.lab.evaluate import evaluate, means
from longshort.lab.runs.errors import CheckpointError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.loop import Loop
from longshort.lab.runs.run import Run
from longshort.lab.runs.signals import Stop
from longshort.lab.tasks.task import check_task
from longshort.lab.train.average import Average
from longshort.lab.train.graph import Gradients
from longshort.lab.train.optimizer import build_optimizer, set_rate
from longshort.lab.train.processes import Parallel, Processes
from longshort.lab.train.state import load_state, random_states, save_state, set_random_states
from longshort.lab.trained.weights import build, files_beside, load_weights


@dataclass(frozen=True)
class Result:
    """How a run ended. `metrics` are the last evaluation's; `seconds` are of all its parts."""

    folder: Path
    step: int
    loss: float
    metrics: dict[str, float]
    best_step: int
    seconds: float


def train(
    run: Run,
    out: Path | str,
    *,
    resume: bool = False,
    keep_length: bool = False,
    cpu: bool = False,
    parallel: Parallel = "ddp",
    console: Console | None = None,
) -> Result:
    """Do a run, and before it those it starts from, each in a folder of its name under `out`.

    resume: go on from the last checkpoint; what is finished is not done again, and what was not begun is begun.
    keep_length: resume with the recorded steps and warm-up, not those of `run`.
    """
    console, out = console or Console(stderr=True), Path(out)
    for each in run.chain:
        check_task(each.task)
    folders = {each.name: RunFolder(out / each.name) for each in run.chain}
    if resume and keep_length:
        run = as_long_as_begun(run, folders)
    with Stop() as stop:  # one for all, so that a wish in the last step of a run stops the next
        for each in run.chain:
            processes = Processes(each.precision, cpu=cpu, parallel=parallel)
            folder = folders[each.name]
            with locked(folder, processes):
                loop = TorchLoop(each, folder, processes, resume=resume, console=console)
                loop.go(stop)
                result = loop.finish()
                del loop
            gc.collect()  # it refers to itself, and its memory is needed
    return result


def as_long_as_begun(run: Run, folders: Mapping[str, RunFolder]) -> Run:
    """The run, and those it starts from, with the steps and the warm-up that their folders record."""
    before = None if run.starts_from is None else as_long_as_begun(run.starts_from, folders)
    return replace(folders[run.name].with_recorded_length(run), starts_from=before)


@contextmanager
def locked(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """The first process locks the folder for all of them; where another training has it, none goes on."""
    refused: TrainingError | None = None
    with ExitStack() as stack:
        if processes.first:
            try:
                stack.enter_context(folder.locked())
            except TrainingError as error:
                refused = error
        if processes.any(refused is not None):
            raise refused or TrainingError(f"the first process could not begin in {folder.path}")
        yield


class TorchLoop(Loop):
    """On one process or many. What a checkpoint must hold is what changes here from step to step."""

    advice = "a lower learning rate, a longer warm-up or clip=1.0"

    def __init__(self, run: Run, folder: RunFolder, processes: Processes, *, resume: bool, console: Console) -> None:
        super().__init__(run, folder, resume=resume, console=console, first=processes.first)
        self.processes = processes
        self.parts = processes.count * run.accumulate
        self.writer = curves
        set_seed(run.seed)  # the same weights in every process
        model = build(run.model, self.start)
        self.beside = files_beside(run.model, model)
        if run.starts_from is not None and self.start is None:
            out = folder.path.parent
            before = RunFolder(out / run.starts_from.name).checkpoints.last()
            if before is None:
                raise TrainingError(f"{run.name} starts from {run.starts_from.name}, which has no checkpoint in {out}")
            alike = type(run.starts_from.model) is type(run.model)  # else what they share, such as an encoder
            load_weights(before, model, strict=alike)
        if run.compile and processes.device.type == "cuda":
            torch.compiler.reset()  # what another run was compiled for
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # whether to use them is the user's choice
            model.compile(dynamic=False)
        self.model = processes.spread(model)
        self.optimizer = build_optimizer(run.optimizer, model)
        self.average = None if run.average is None else Average(self.model, run.average)
        self.compute: Step = self.forward_backward
        alone = processes.device.type == "cuda" and self.parts == 1
        if run.graph and alone:
            self.compute = Gradients(self.forward_backward, model)
        set_seed(run.seed + 1 + processes.index)  # other dropout in every process
        self.carries: list[Any] = [None] * run.accumulate
        self.loss_sum: Tensor = torch.zeros((), device=processes.device)  # since the last line of the log
        self.loss_count = 0
        self.begin()

    def update(self, rate: float) -> int:
        run, processes = self.run, self.processes
        set_rate(self.optimizer, rate)
        self.model.train()
        seen = 0
        for i in range(run.accumulate):
            part = processes.index * run.accumulate + i
            batch = run.task.batch(self.step, part, self.parts)
            seen += run.task.size(batch) * processes.count
            last = i == run.accumulate - 1
            with processes.accumulating(self.model, last):
                prepared = run.task.prepare(processes.send(batch))
                loss, self.carries[i] = self.compute(prepared, self.carries[i])
            self.loss_sum += loss / run.accumulate
        self.loss_count += 1
        if run.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), run.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.average is not None:
            self.average.update(self.model, self.step)
        return seen

    def forward_backward(self, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        """Adds a part's gradients to the model; the loss, and what the part carries on."""
        with self.processes.autocast():
            loss, carry = self.run.task.loss(self.model, batch, carry)
        (loss / self.run.accumulate).backward()
        return loss.detach().float(), carry

    def take_losses(self) -> tuple[float, float]:
        total, count = self.processes.total([self.loss_sum.item(), float(self.loss_count)])
        self.loss_sum.zero_()
        self.loss_count = 0
        return total, count

    def stopping(self, stop: Stop, logged: bool) -> bool:
        """Several processes ask each other when the log is written, since every one must come to know it."""
        if self.processes.count == 1:
            return stop.wanted
        return logged and self.processes.any(stop.wanted)

    @torch.no_grad()
    def measure(self, stop: Stop) -> dict[str, float]:
        """A signal leaves it, unless other processes would wait."""
        processes = self.processes
        self.model.eval()
        states = random_states()
        try:
            with (
                nullcontext() if self.average is None else self.average.used(self.model),
                processes.whole(self.model) as model,
                torch.compiler.set_stance("force_eager"),  # other shapes, seldom: not worth compiling
                stop.leaving(processes.count == 1),
            ):
                return means(evaluate(model, self.run.task.evaluators("dev"), processes))
        finally:
            set_random_states(states)  # how often a run is evaluated does not change it

    def is_finite(self) -> bool:
        norms = torch._foreach_norm([p.detach() for p in self.model.parameters()])
        finite = [torch.isfinite(t) for t in (self.loss_sum, *norms)]  # all, since with fsdp each asks all processes
        return not self.processes.any(not all(finite))

    @property
    def own(self) -> dict[str, Any]:
        """What this process has for itself."""
        return dict(carries=self.carries, loss_sum=self.loss_sum, loss_count=self.loss_count)

    def write(self, facts: dict[str, Any]) -> None:
        save_state(
            self.folder.checkpoints,
            self.step,
            facts,
            self.beside,
            self.model,
            self.optimizer,
            self.own,
            self.processes,
            self.average,
        )

    def read(self, path: Path) -> dict[str, Any]:
        facts, own = load_state(path, self.model, self.optimizer, self.own, self.processes, self.average)
        self.carries, self.loss_sum, self.loss_count = own["carries"], own["loss_sum"], own["loss_count"]
        if len(self.carries) != self.run.accumulate:
            raise CheckpointError(
                f"checkpoint {path} is of a run with accumulate {len(self.carries)}, and now it is "
                f"{self.run.accumulate}: each part of a batch has its own part of the text"
            )
        return facts

    def finish(self) -> Result:
        result = Result(self.folder.path, self.step, self.last_loss, self.metrics, self.best_step, self.seconds)
        if self.first:
            self.folder.write_result({**vars(result), "folder": str(result.folder)})
        return result


def curves(folder: Path, step: int) -> Any:
    """TensorBoard's writer, for the steps after this one; None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
