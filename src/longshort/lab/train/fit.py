"""The loop: one for all tasks, on one process or many; it knows a Run and the Task protocol, nothing else."""

from __future__ import annotations

import gc
import json
import math
import time
import warnings
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from rich.console import Console
from torch import Tensor, nn

from longshort.serial import as_json, from_json
from longshort.graphs import Step
from longshort.lab.train.average import Average
from longshort.lab.runs.checkpoints import Checkpoints, write_whole
from longshort.lab.runs.errors import CheckpointError, DivergedError, StoppedError, TrainingError, writing
from longshort.lab.train.graph import Gradients
from longshort.lab.runs.signals import Left, Stop
from longshort.lab.runs.log import Log, clock
from longshort.lab.train.optimizer import set_rate
from longshort.lab.train.processes import Parallel, Processes
from longshort.lab.runs.run import Run, differences
from longshort.lab.train.state import (
    build,
    files_beside,
    load_state,
    load_weights,
    random_states,
    save_state,
    set_random_states,
)

# of a run that goes on; how it is spread and divided is checked with its checkpoint
MAY_CHANGE = ("steps", "schedule.warmup", "log_every", "evaluate_every", "save_every", "compile", "graph", "accumulate")


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
    cpu: bool = False,
    parallel: Parallel = "ddp",
    console: Console | None = None,
) -> Result:
    """Do a run, and before it those it starts from, each in a folder of its name under `out`.

    resume: go on from the last checkpoint; what is finished is not done again, and what was not begun is begun.
    """
    console = console or Console(stderr=True)
    with Stop() as stop:  # one for all, so that a wish in the last step of a run stops the next
        for each in run.chain:
            loop = Loop(each, out, resume=resume, cpu=cpu, parallel=parallel, console=console)
            result = loop.go(stop)
            del loop
            gc.collect()  # it refers to itself, and its memory is needed
    return result


class Loop:
    """One run under way. What a checkpoint must hold is what changes here from step to step."""

    def __init__(self, run: Run, out: Path, *, resume: bool, cpu: bool, parallel: Parallel, console: Console) -> None:
        self.run, self.folder = run, out / run.name
        self.processes = Processes(run.precision, cpu=cpu, parallel=parallel)
        self.checkpoints = Checkpoints(self.folder / "checkpoints")
        self.console = console
        self.parts = self.processes.count * run.accumulate
        start = self.checkpoints.last()
        if start is not None and not resume:
            raise TrainingError(f"{self.folder} holds a run already: go on with --resume, or give another --out")
        if start is not None:
            self.check_same()

        self.data = run.task.fingerprint()
        set_seed(run.seed)  # the same weights in every process
        model = build(run.model, start)
        self.beside = files_beside(run.model, model)
        if run.starts_from is not None and start is None:
            before = Checkpoints(out / run.starts_from.name / "checkpoints").last()
            if before is None:
                raise TrainingError(f"{run.name} starts from {run.starts_from.name}, which has no checkpoint in {out}")
            alike = type(run.starts_from.model) is type(run.model)  # else what they share, such as an encoder
            load_weights(before, model, strict=alike)
        if run.compile and self.processes.device.type == "cuda":
            torch.compiler.reset()  # what another run was compiled for
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # whether to use them is the user's choice
            model.compile(dynamic=False)
        self.model = self.processes.spread(model)
        self.optimizer = run.optimizer.build(model)
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
        self.judged = 0  # the step of the last evaluation
        self.seconds = 0.0
        if start is not None:
            self.load(start)
        self.prepare_folder()

    def check_same(self) -> None:
        """A run goes on as it began, but for how long it lasts and for what does not decide the result."""
        try:
            began = json.loads((self.folder / "run.json").read_text())
        except (OSError, ValueError):
            return
        with suppress(ValueError):  # a task of the user's own is compared as it was written
            began = as_json(from_json(began))  # with fields that are newer than the record
        if self.processes.first and began.get("steps") != self.run.steps:
            self.console.print(f"{self.run.name}: {began.get('steps')} steps before, {self.run.steps} now")
        changed = differences(began, as_json(self.run), but=MAY_CHANGE)
        if changed:
            raise TrainingError(
                f"{self.folder} was begun with other settings: {'; '.join(changed)}. "
                "Resume with those it has, or give another --out."
            )

    def prepare_folder(self) -> None:
        """Fails now rather than at the first checkpoint."""
        if not self.processes.first:
            return
        record = json.dumps(as_json(self.run), indent=1)
        with writing(self.folder):
            self.checkpoints.folder.mkdir(parents=True, exist_ok=True)
            self.checkpoints.tidy()
            write_whole(self.folder / "run.json", record.encode())

    def go(self, stop: Stop) -> Result:
        run, first = self.run, self.processes.first
        if self.step < run.steps or self.owes:
            log = Log(
                self.folder,
                run.name,
                run.steps,
                step=self.step,
                owes=self.owes,
                quiet=not first,
                console=self.console,
            )
            stop.saves = True
            try:
                self.loop(log, stop)
            finally:
                stop.saves = False
                log.close()
        elif first:
            self.console.print(f"{run.name} was finished before, in {self.folder}", highlight=False)
        result = self.result()
        if first:
            facts = {**vars(result), "folder": str(result.folder)}
            with writing(self.folder):
                write_whole(self.folder / "result.json", json.dumps(facts, indent=1).encode())
        return result

    def loop(self, log: Log, stop: Stop) -> None:
        run = self.run
        began, seen, lap = time.monotonic() - self.seconds, 0, time.monotonic()
        if self.owes:  # left out by a stop, or due by settings that changed
            try:
                self.judge(log, stop)
            except Left:
                raise StoppedError(f"stopped at step {self.step:,}, which was saved before") from None
            if self.processes.first:
                self.checkpoints.amend(self.step, self.judgement)
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
                    better = self.judge(log, stop)
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
        log.say(f"{run.name}: {run.steps:,} steps in {clock(self.seconds)}{self.told()}{best}, {self.folder}")

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
        return due and self.judged != self.step

    def judge(self, log: Log, stop: Stop) -> bool:
        """Evaluate, and note what was found; whether the model is better than it was."""
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
                processes.autocast(),
                processes.whole(self.model) as model,
                torch.compiler.set_stance("force_eager"),  # other shapes, seldom: not worth compiling
                stop.leaving(processes.count == 1),
            ):
                means = task.evaluate(model, processes.index, processes.count)
        finally:
            set_random_states(states)  # how often a run is evaluated does not change it
        names = sorted(means)
        totals = processes.total([number for name in names for number in means[name]])
        self.metrics = {name: totals[2 * i] / totals[2 * i + 1] for i, name in enumerate(names)}
        score = self.metrics[task.metric] * (-1 if task.higher_is_better else 1)
        better = score < self.best
        if better:
            self.best, self.best_step = score, self.step
        self.judged = self.step
        return better

    def save(self) -> None:
        norms = torch._foreach_norm([p.detach() for p in self.model.parameters()])
        finite = [torch.isfinite(t) for t in (self.loss_sum, *norms)]  # all, since with fsdp each asks all processes
        if self.processes.any(not all(finite)):
            raise self.diverged("the loss or weights are no numbers any more")
        own = dict(carries=self.carries, loss_sum=self.loss_sum, loss_count=self.loss_count)
        about = dict(
            run=self.run.name,
            data=self.data,
            last_loss=self.last_loss,
            seconds=self.seconds,
            **self.judgement,
        )
        save_state(
            self.checkpoints,
            self.step,
            about,
            self.beside,
            self.model,
            self.optimizer,
            own,
            self.processes,
            self.average,
        )

    @property
    def judgement(self) -> dict[str, Any]:
        """What evaluations found: of all that a checkpoint notes, what they change."""
        return dict(best_step=self.best_step or None, best=self.best, metrics=self.metrics, judged=self.judged)

    def load(self, path: Path) -> None:
        about, own = load_state(path, self.model, self.optimizer, self.processes, self.average)
        self.step, self.metrics, self.seconds = about["step"], about["metrics"], about["seconds"]
        self.judged = about.get("judged", self.step)
        unfinished = self.step < self.run.steps or self.owes
        if unfinished and about.get("data", self.data) != self.data:
            raise TrainingError(
                f"the data is not what {self.folder} had at step {about['step']:,}, and a run goes on with what it "
                "began with. Say where that is (run.json has it), restore it, or give another --out."
            )
        self.best_step, self.best, self.last_loss = about["best_step"] or 0, about["best"], about["last_loss"]
        self.carries, self.loss_sum, self.loss_count = own["carries"], own["loss_sum"], own["loss_count"]
        if len(self.carries) != self.run.accumulate:
            raise CheckpointError(
                f"checkpoint {path} is of a run with accumulate {len(self.carries)}, and now it is "
                f"{self.run.accumulate}: each part of a batch has its own part of the text"
            )
        if self.step > self.run.steps:
            raise TrainingError(f"{path} is of step {self.step:,}, and the run has {self.run.steps:,} steps")

    def diverged(self, what: str) -> DivergedError:
        last = self.checkpoints.last()
        left = "there is no earlier checkpoint" if last is None else f"the last good checkpoint is {last}"
        return DivergedError(
            f"{what} at step {self.step:,} (or up to {self.run.log_every} steps before); {left}. "
            "Another run with a lower learning rate, a longer warm-up or clip=1.0 may help."
        )

    def result(self) -> Result:
        return Result(self.folder, self.step, self.last_loss, self.metrics, self.best_step, self.seconds)
