"""Trainings in other processes, which may be killed: what is started there, and how."""

import multiprocessing
import os
import signal
import socket
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._dynamo  # this and tensorboard so that forked processes find them loaded
import torch.utils.tensorboard
from torch import nn
from training import MUON, Points, before_call, do, full, points

from longshort.lab.runs.log import LOG, Log
from longshort.lab.tasks import LanguageModelling
from longshort.lab.train import CheckpointError, DivergedError, StoppedError, TrainingError, state
from longshort.lab.train.processes import Processes


def apart(target, *arguments, count=1, timeout=60.0):
    """Call target in `count` processes that find each other as under torchrun. Their exit codes: a signal's is below 0.

    They are forked from one that has imported this module and computed nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["apart"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_apart, args=(said[i][1], i, count, port, target, arguments)) for i in range(count)
    ]
    with pytest.MonkeyPatch.context() as patch:  # by which the one they are forked from, started at first, finds this
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        for process in processes:
            process.start()
    for process in processes:
        process.join(timeout)
    late = [process.pid for process in processes if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    errors = [reader.recv() for reader, _ in said if reader.poll()]
    assert not late and not errors, "\n".join([f"still running after {timeout} s: {late}" if late else "", *errors])
    return [process.exitcode for process in processes]


def _apart(say, index, count, port, target, arguments):
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # or accelerate takes as many as there are
    if count > 1:
        place = dict(RANK=index, LOCAL_RANK=index, WORLD_SIZE=count, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        os.environ.update({name: str(value) for name, value in place.items()})
    try:
        target(*arguments)
    except BaseException:
        say.send(f"process {index}: {traceback.format_exc()}")
    os._exit(0)  # an orderly exit races with gloo's threads and now and then aborts


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def half_line(path):
    with path.open("a") as f:
        f.write('{"step": ')


class Deaths:
    """Counts the moments at which a training may be killed, and kills it at one of them: before a step's update, in
    the middle of a file, before a file or a name has reached the disk, before an old file is gone, in the middle of a
    line of the log."""

    def __init__(self, at=None):
        self.at, self.moments = at, []
        self.watch(nn.utils, "clip_grad_norm_")
        self.watch(state, "write", lambda path, fill: path.write_bytes(b"half"))
        for name in ("fsync", "rename", "replace", "unlink"):
            self.watch(os, name)
        self.watch(Log, "numbers", lambda log, *_, **__: half_line(log.folder / LOG))

    def watch(self, owner, name, before_death=lambda *_, **__: None):
        original = getattr(owner, name)

        def watched(*arguments, **keywords):
            if len(self.moments) == self.at:
                before_death(*arguments, **keywords)
                die()
            self.moments.append(name)
            return original(*arguments, **keywords)

        setattr(owner, name, watched)


def train_until(at, run, out):
    """Or, with None, to the end; then the moments there were are written down."""
    deaths = Deaths(at)
    do(run, out, resume=True)
    (out / "moments").write_text(" ".join(deaths.moments))


def train_or_be_refused(run, out, at=None):
    """Or be killed at a moment."""
    Deaths(at)
    try:
        do(run, out, resume=True)
    except TrainingError as error:
        assert "another process is training" in str(error)


def train_where_another_does(run, out):
    """Each of the processes is refused, and none waits for the others."""
    try:
        do(run, out)
    except TrainingError as error:
        first = os.environ["RANK"] == "0"
        assert ("another process is training" if first else "the first process could not begin") in str(error), error
        return
    raise AssertionError("it trained")


def train_each(runs, out):
    for parallel, run in runs:
        do(run, out, parallel=parallel)


def killed(run, out, parallel):
    """The second process, in the middle of its fifth step; the first then finds itself alone."""
    if os.environ["RANK"] == "1":
        before_call(setattr, LanguageModelling, "loss", 5, die)
    try:
        do(run, out, parallel=parallel)
    except RuntimeError as error:
        assert "onnection" in str(error), error
        return
    raise AssertionError("the first process went on alone")


def resumed_and_whole(run, out, parallel):
    do(run, out, resume=True, parallel=parallel)
    do(run, out / "whole", parallel=parallel)


def in_parts(run, out, parallel):
    """A run that stops halfway and goes on, and the same in one go."""
    do(replace(run, steps=run.steps // 2), out / "parts", parallel=parallel)
    do(run, out / "parts", resume=True, parallel=parallel)
    do(run, out / "whole", parallel=parallel)


def together(out):
    """What only the second process meets, both must answer to."""
    second = os.environ["RANK"] == "1"

    def meets(what, owner, name, n, run, error, **keywords):
        original = getattr(owner, name)
        if second:
            before_call(setattr, owner, name, n, what)
        with pytest.raises(error) as e:
            do(run, out, **keywords)
        setattr(owner, name, original)
        return str(e.value)

    stopped = points(name="stopped", steps=9, save_every=100, log_every=3)
    said = meets(lambda: os.kill(os.getpid(), signal.SIGTERM), Points, "batch", 4, stopped, StoppedError)
    assert "stopped at step 6" in said, said  # when the log is written, all are asked
    do(stopped, out, resume=True)
    do(replace(stopped, name="whole"), out)

    full_disk = points(name="full")
    said = meets(full, state, "write", 2, full_disk, CheckpointError)
    assert "step_00000002, is intact" in said if second else "another process could not write" in said, said
    do(full_disk, out, resume=True)

    nan = points(name="nan", nan=(3,), save_every=1, log_every=6)
    if not second:
        nan = replace(nan, task=Points())
    said = meets(lambda: None, Points, "batch", 1, nan, DivergedError)
    assert "step_00000003" in said, said

    with pytest.raises(ValueError, match="Muon needs whole matrices, but FSDP shards them; use AdamW or DDP"):
        do(points(name="muon", optimizer=MUON), out, parallel="fsdp")

    processes = Processes("auto", cpu=True)
    assert processes.count == 2 and processes.first != second and processes.index == int(second)
    assert processes.total([1.0, processes.index]) == [2.0, 1.0]
    assert processes.any(second) and not processes.any(False)
