"""How long a step of a run takes, and how much memory, as it is trained: data, forward and backward pass, optimizer."""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console

from longshort.lab.runs.folder import RunFolder
from longshort.lab.train import Run
from longshort.lab.train.fit import TorchLoop
from longshort.lab.train.processes import Processes

WARM = 20  # steps before those that count: they compile and capture


@dataclass(frozen=True)
class Step:
    """ms: the mean over steps. mib: the most memory of a GPU that was taken at once."""

    ms: float
    mib: float | None


def measured_step(run: Run, *, steps: int = 200, cpu: bool = False) -> Step:
    """Without evaluations and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = Console(file=StringIO())
        alone = replace(run, starts_from=None)  # whatever its weights are, a step is a step
        processes = Processes(run.precision, cpu=cpu)
        loop = TorchLoop(alone, RunFolder(Path(folder) / run.name), processes, resume=False, console=quiet)
        for _ in range(min(WARM, steps)):
            loop.update(1.0)
        gpu = loop.processes.device.type == "cuda"
        wait(loop)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for _ in range(steps):
            loop.update(1.0)
        wait(loop)
        taken = time.perf_counter() - began
        mib = torch.cuda.max_memory_allocated() / 2**20 if gpu else None
    del loop
    gc.collect()  # it refers to itself, and its memory is needed
    return Step(1e3 * taken / steps, mib)


def wait(loop: TorchLoop) -> None:
    if loop.processes.device.type == "cuda":
        torch.cuda.synchronize()
