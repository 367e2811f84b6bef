"""The loop: one for all tasks, on one process or many; it knows a Run and the Task protocol, nothing else."""

from __future__ import annotations

import gc
import math
import time
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
from longshort.lab.runs.errors import CheckpointError, DivergedError, StoppedError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import Log, clock
from longshort.lab.runs.run import Run
from longshort.lab.runs.signals import Left, Stop
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
    out: Path,
    *,
    resume: bool = False,
    keep_length: bool = False,
    cpu: bool = False,
    parallel: Parallel = "ddp",
    console: Console | None = None,
) -> Result:
    """Do a run, and before it those it starts from, each in a folder of its name under `out`.

    resume: go on from the last checkpoint; what is finished is not done again, and what was not begun is begun.
    keep_length: what goes on has the steps and the warm-up that it began with, not those of `run`.
    """
    console = console or Console(stderr=True)
    folders = {each.name: RunFolder(out / each.name) for each in run.chain}
    if resume and keep_length:
        run = as_long_as_begun(run, folders)
    with Stop() as stop:  # one for all, so that a wish in the last step of a run stops the next
        for each in run.chain:
            processes = Processes(each.precision, cpu=cpu, parallel=parallel)
            folder = folders[each.name]
            with locked(folder, processes):
                loop = Loop(each, folder, processes, resume=resume, console=console)
                result = loop.go(stop)
                del loop
            gc.collect()  # it refers to itself, and its memory is needed
    return result


def as_long_as_begun(run: Run, folders: Mapping[str, RunFolder]) -> Run:
    """The run, and those it starts from, with the steps and the warm-up that their folders record."""
    before = None if run.starts_from is None else as_long_as_begun(run.starts_from, folders)
    folder = folders[run.name]
    if not folder.record.exists():
        return replace(run, starts_from=before)
    schedule = replace(run.schedule, warmup=folder.run.schedule.warmup)
    return replace(run, starts_from=before, steps=folder.run.steps, schedule=schedule)


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


class Loop:
    """One run under way. What a checkpoint must hold is what changes here from step to step."""

    def __init__(self, run: Run, folder: RunFolder, processes: Processes, *, resume: bool, console: Console) -> None:
        self.run, self.folder, self.processes, self.console = run, folder, processes, console
        self.parts = processes.count * run.accumulate
        start = folder.start(run, resume=resume, say=self.say)

        self.data = run.task.fingerprint()
        set_seed(run.seed)  # the same weights in every process
        model = build(run.model, start)
        self.beside = files_beside(run.model, model)
        if run.starts_from is not None and start is None:
            out = folder.path.parent
            before = RunFolder(out / run.starts_from.name).checkpoints.last()
            if before is None:
                raise TrainingError(f"{run.name} starts from {run.starts_from.name}, which has no checkpoint in {out}")
            alike = type(run.starts_from.model) is type(run.model)  # else what they share, such as an encoder
            load_weights(before, model, strict=alike)
        if run.compile and self.processes.device.type == "cuda":
            torch.compiler.reset()  # what another run was compiled for
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # whether to use them is the user's choice
            model.compile(dynamic=False)
        self.model = self.processes.spread(model)
        self.optimizer = build_optimizer(run.optimizer, model)
        self.average = None if run.average is None else Average(self.model, run.average)
        self.compute: Step = self.forward_backward
        alone = self.processes.device.type == "cuda" and self.parts == 1
        if run.graph and alone:
            self.compute = Gradients(self.forward_backward, model)
        set_seed(run.seed + 1 + self.processes.index)  # other dropout in every process

        self.step = 0
        self.carries: list[Any] = [None] * run.accumulate
        self.loss_sum: Tensor = torch.zeros((), device=self.processes.device)  # since the last line of the log
        self.loss_count = 0
        self.last_loss = math.nan
        self.metrics: dict[str, float] = {}
        self.best_step, self.best = 0, math.inf
        self.evaluated = 0  # the step of the last evaluation
        self.seconds = 0.0
        if start is not None:
            self.load(start)
        if processes.first:
            folder.prepare(run)

    def say(self, text: str) -> None:
        if self.processes.first:
            self.console.print(text, highlight=False, soft_wrap=True)

    def go(self, stop: Stop) -> Result:
        run, first = self.run, self.processes.first
        if self.step < run.steps or self.owes:
            log = Log(
                self.folder.path,
                run.name,
                run.steps,
                step=self.step,
                owes=self.owes,
                quiet=not first,
                console=self.console,
                writer=curves,
            )
            stop.saves = True
            try:
                self.loop(log, stop)
            finally:
                stop.saves = False
                log.close()
        else:
            self.say(f"{run.name} was finished before, in {self.folder.path}")
        result = self.result()
        if first:
            self.folder.write_result({**vars(result), "folder": str(result.folder)})
        return result

    def loop(self, log: Log, stop: Stop) -> None:
        run = self.run
        began, seen, lap = time.monotonic() - self.seconds, 0, time.monotonic()
        if self.owes:  # left out by a stop, or due by settings that changed
            try:
                self.evaluate_and_note(log, stop)
            except Left:
                raise StoppedError(f"stopped at step {self.step:,}, which was saved before") from None
            if self.processes.first:
                self.folder.checkpoints.amend(self.step, self.evaluation)
            lap = time.monotonic()
        while self.step < run.steps:
            rate = run.schedule.factor(self.step, run.steps)
            seen += self.update(rate)
            logs, last = self.step % run.log_every == 0, self.step == run.steps
            if logs or last:
                loss, speed = self.mean_loss(), seen / (time.monotonic() - lap)
                self.seconds = time.monotonic() - began
                numbers = {"loss": loss, "rate": rate, f"{run.task.unit}_per_second": speed, "seconds": self.seconds}
                log.numbers(self.step, **numbers)
                log.progress(self.step, f"loss {loss:.4f}{self.told()}  {speed:,.0f} {run.task.unit}/s")
                seen, lap = 0, time.monotonic()
            else:
                log.move(self.step)
            stopping = self.stopping(stop, logs or last)
            better = False
            pause = time.monotonic()
            if self.owes and not stopping:
                try:
                    better = self.evaluate_and_note(log, stop)
                except Left:
                    stopping = True
            if last or better or stopping or self.step % run.save_every == 0:
                self.seconds = time.monotonic() - began
                self.save()
            lap += time.monotonic() - pause  # the speed is that of training
            if stopping:
                left = "; its evaluation is left for later" if self.owes else ""
                raise StoppedError(f"stopped at step {self.step:,}, which is saved{left}")
        best = "" if self.best_step in (0, run.steps) else f" (best at step {self.best_step:,})"
        log.say(f"{run.name}: {run.steps:,} steps in {clock(self.seconds)}{self.told()}{best}, {self.folder.path}")

    def told(self) -> str:
        """The last evaluation."""
        return "".join(f"  {name} {value:.4f}" for name, value in self.metrics.items())

    def update(self, rate: float) -> int:
        """One step of the optimizer. How much it learned from, in all processes."""
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
                given = run.task.prepare(processes.send(batch))
                loss, self.carries[i] = self.compute(given, self.carries[i])
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

    def mean_loss(self) -> float:
        """Over the steps since the last line of the log, and over processes."""
        total, count = self.processes.total([self.loss_sum.item(), float(self.loss_count)])
        self.loss_sum.zero_()
        self.loss_count = 0
        self.last_loss = total / count
        if not math.isfinite(self.last_loss):
            raise self.diverged(f"the loss is {self.last_loss}")
        return self.last_loss

    def stopping(self, stop: Stop, asks: bool) -> bool:
        """Whether all should stop: asked when the log is written, since every process must come to know it."""
        if self.processes.count == 1:
            return stop.wanted
        return asks and self.processes.any(stop.wanted)

    @property
    def owes(self) -> bool:
        """Whether an evaluation is due, and was not made."""
        due = self.step == self.run.steps or (self.step > 0 and self.step % self.run.evaluate_every == 0)
        return due and self.evaluated != self.step

    def evaluate_and_note(self, log: Log, stop: Stop) -> bool:
        """Whether the model is better than it was."""
        with log.doing("evaluating"):
            better = self.evaluate(stop)
        log.numbers(self.step, **self.metrics)
        return better

    @torch.no_grad()
    def evaluate(self, stop: Stop) -> bool:
        """Whether the model is better than it was. A signal leaves it, unless other processes would wait."""
        task, processes = self.run.task, self.processes
        self.model.eval()
        states = random_states()
        try:
            with (
                nullcontext() if self.average is None else self.average.used(self.model),
                processes.whole(self.model) as model,
                torch.compiler.set_stance("force_eager"),  # other shapes, seldom: not worth compiling
                stop.leaving(processes.count == 1),
            ):
                self.metrics = means(evaluate(model, task.evaluators("dev"), processes))
        finally:
            set_random_states(states)  # how often a run is evaluated does not change it
        score = self.metrics[task.metric] * (-1 if task.higher_is_better else 1)
        better = score < self.best
        if better:
            self.best, self.best_step = score, self.step
        self.evaluated = self.step
        return better

    def save(self) -> None:
        norms = torch._foreach_norm([p.detach() for p in self.model.parameters()])
        finite = [torch.isfinite(t) for t in (self.loss_sum, *norms)]  # all, since with fsdp each asks all processes
        if self.processes.any(not all(finite)):
            raise self.diverged("the loss or weights are no numbers any more")
        own = dict(carries=self.carries, loss_sum=self.loss_sum, loss_count=self.loss_count)
        facts = dict(
            run=self.run.name,
            data=self.data,
            last_loss=self.last_loss,
            seconds=self.seconds,
            **self.evaluation,
        )
        save_state(
            self.folder.checkpoints,
            self.step,
            facts,
            self.beside,
            self.model,
            self.optimizer,
            own,
            self.processes,
            self.average,
        )

    @property
    def evaluation(self) -> dict[str, Any]:
        """Of all that a checkpoint notes, what an evaluation changes."""
        return dict(best_step=self.best_step or None, best=self.best, metrics=self.metrics, evaluated=self.evaluated)

    def load(self, path: Path) -> None:
        facts, own = load_state(path, self.model, self.optimizer, self.processes, self.average)
        self.step, self.metrics, self.seconds = facts["step"], facts["metrics"], facts["seconds"]
        self.evaluated = facts["evaluated"]
        unfinished = self.step < self.run.steps or self.owes
        if unfinished and facts["data"] != self.data:
            raise TrainingError(
                f"the data is not what {self.folder.path} had at step {facts['step']:,}, and a run goes on with "
                "what it began with. Say where that is (run.json has it), restore it, or give another --out."
            )
        self.best_step, self.best, self.last_loss = facts["best_step"] or 0, facts["best"], facts["last_loss"]
        self.carries, self.loss_sum, self.loss_count = own["carries"], own["loss_sum"], own["loss_count"]
        if len(self.carries) != self.run.accumulate:
            raise CheckpointError(
                f"checkpoint {path} is of a run with accumulate {len(self.carries)}, and now it is "
                f"{self.run.accumulate}: each part of a batch has its own part of the text"
            )
        if self.step > self.run.steps:
            raise TrainingError(f"{path} is of step {self.step:,}, and the run has {self.run.steps:,} steps")

    def diverged(self, what: str) -> DivergedError:
        last = self.folder.checkpoints.last()
        left = "there is no earlier checkpoint" if last is None else f"the last good checkpoint is {last}"
        return DivergedError(
            f"{what} at step {self.step:,} (or up to {self.run.log_every} steps before); {left}. "
            "Another run with a lower learning rate, a longer warm-up or clip=1.0 may help."
        )

    def result(self) -> Result:
        return Result(self.folder.path, self.step, self.last_loss, self.metrics, self.best_step, self.seconds)


def curves(folder: Path, step: int) -> Any:
    """TensorBoard's writer, for the steps after this one; None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
