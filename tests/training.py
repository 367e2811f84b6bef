"""Small trainings for tests, and what they leave."""

import errno
import io
import json
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from longshort.checksums import META
from longshort.lab.data.source import FileSource
from longshort.lab.evaluate import Share
from longshort.lab.evaluate.bits import Reading
from longshort.lab.runs.checkpoints import Checkpoints
from longshort.lab.runs.log import read_log
from longshort.lab.tasks import LanguageModelling
from longshort.lab.train import AdamW, Muon, Run, Schedule, StoppedError, train
from longshort.lab.train.fit import TorchLoop
from longshort.models.charlm import CharLMConfig

MODEL = CharLMConfig(layers=1, width=16, heads=2, feedforward=32, window=8, segment=4, dropout=0.1, memory=16)
ADAMW = AdamW(lr=0.01)
STEADY = AdamW(lr=0.01, eps=1e-3)  # with a small eps, AdamW makes rounding large where gradients are about 0
MUON = Muon(lr=0.01, weight_decay=0.1, rest=ADAMW)


def language(folder, **changes):
    """A character model of a text in `folder`: dropout, caches, and checkpoints between the lines of the log."""
    path = folder / "text"
    if not path.exists():
        path.write_bytes(bytes(97 + (i * i + i // 7) % 26 for i in range(3_000)))
    task = LanguageModelling(FileSource(path), length=12, sequences=4, evaluation=Reading(context=8, batch=4))
    schedule = Schedule("linear", warmup=2)
    every = dict(log_every=2, evaluate_every=4, save_every=3)
    run = Run("language", MODEL, task, 7, optimizer=ADAMW, schedule=schedule, clip=1.0, **every)
    return replace(run, **changes)


class Counting(nn.Module):
    """A line through points that knows how many batches it was trained on."""

    def __init__(self, width):
        super().__init__()
        self.line, self.dropout = nn.Linear(width, 1), nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):  # [B, C]
        if self.training:
            self.seen += 1
        return self.line(self.dropout(x)).squeeze(1)


@dataclass(frozen=True)
class CountingConfig:
    width: int = 3

    def build(self):
        return Counting(self.width)


class Tied(Counting):
    """Two of its layers share a weight."""

    def __init__(self, width):
        super().__init__(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x):
        return super().forward(self.second(self.first(x).tanh()))


@dataclass(frozen=True)
class TiedConfig(CountingConfig):
    def build(self):
        return Tied(self.width)


@dataclass(frozen=True)
class Points:
    """scores: what an evaluation finds, by the number of steps before it. The loss is NaN at the steps `nan`, and
    at those in `poison` the gradients alone are."""

    scores: tuple[float, ...] = ()
    higher_is_better: bool = False
    nan: tuple[int, ...] = ()
    poison: tuple[int, ...] = ()
    draws: bool = False  # random numbers while it evaluates

    metric = "score"
    unit = "points"

    def batch(self, step, part, parts):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step * parts + part))
        return {"x": x, "step": torch.tensor(step)}

    def fingerprint(self):
        return ""

    def prepare(self, batch):
        return batch

    def size(self, batch):
        return len(batch["x"])

    def loss(self, model, batch, carry):
        loss = (model(batch["x"]) - batch["x"].sum(1)).square().mean()
        if batch["step"] in self.nan:
            loss = loss + torch.nan
        if batch["step"] in self.poison:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return loss, None

    def evaluators(self, split):
        return [Score(self)]


@dataclass(frozen=True)
class Score:
    """What points are worth."""

    points: Points
    name: str = "dev"
    size: int = 1

    def run(self, model, processes, advance):
        if self.points.draws:
            torch.rand(1)
        seen = int(model.seen)
        return {"score": Share(self.points.scores[seen] if seen < len(self.points.scores) else 0.0, 1.0)}


def points(**changes):
    run = Run("points", CountingConfig(), Points(), 6, optimizer=ADAMW, log_every=2, evaluate_every=100, save_every=2)
    of_task = {name: changes.pop(name) for name in list(changes) if name in Points.__dataclass_fields__}
    return replace(run, task=replace(run.task, **of_task), **changes)


def do(run, out, **keywords):
    """The result, and what was printed."""
    printed = Console(file=io.StringIO(), width=200)
    return train(run, out, cpu=True, console=printed, **keywords), printed.file.getvalue()


def checkpoints(run, out):
    return Checkpoints(out / run.name / "checkpoints")


def weights(run, out):
    return load_file(checkpoints(run, out).last() / "model.safetensors")


def outcome(run, out):
    """All that a training leaves but for how long it took."""
    folder = out / run.name
    lines = [{k: v for k, v in line.items() if not k.endswith(("seconds", "_per_second"))} for line in read_log(folder)]
    last = checkpoints(run, out).last()
    about = json.loads((last / META).read_text())
    result = json.loads((folder / "result.json").read_text())
    told = {name: about[name] for name in ("step", "best_step", "best", "metrics", "last_loss")}
    ended = {name: result[name] for name in ("step", "loss", "metrics", "best_step")}
    left = sorted(p.name for p in last.parent.iterdir())
    return dict(
        log=lines, told=told, result=ended, left=left, weights={k: v.tolist() for k, v in weights(run, out).items()}
    )


def same_weights(a, b, tolerance=0.0):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def stop_before(patch, step):
    """A training stops before this step, without saving it."""
    update = TorchLoop.update

    def stops(loop, rate):
        if loop.step == step:
            raise StoppedError("here")
        return update(loop, rate)

    patch(TorchLoop, "update", stops)


def before_call(patch, owner, name, n, act):
    """Do `act` before the n-th call, from 1. patch: such as monkeypatch.setattr."""
    original, calls = getattr(owner, name), []

    def patched(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == n:
            act()
        return original(*arguments, **keywords)

    patch(owner, name, patched)


def full():
    raise OSError(errno.ENOSPC, "No space left on device")
