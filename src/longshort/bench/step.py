"""How long a step of a run takes, as it is trained: data, forward and backward pass, optimizer."""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console

from longshort.train import Run
from longshort.train.fit import Loop

WARM = 20  # steps before those that count: they compile and capture


def milliseconds_a_step(run: Run, *, steps: int = 200, cpu: bool = False) -> float:
    """The mean over `steps` steps, without evaluations and checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = Console(file=StringIO())
        alone = replace(run, starts_from=None)  # whatever its weights are, a step is a step
        loop = Loop(alone, Path(folder), resume=False, cpu=cpu, parallel="ddp", console=quiet)
        for _ in range(min(WARM, steps)):
            loop.update(1.0)
        wait(loop)
        began = time.perf_counter()
        for _ in range(steps):
            loop.update(1.0)
        wait(loop)
        taken = time.perf_counter() - began
    del loop
    gc.collect()  # it refers to itself, and its memory is needed
    return 1e3 * taken / steps


def wait(loop: Loop) -> None:
    if loop.processes.device.type == "cuda":
        torch.cuda.synchronize()
