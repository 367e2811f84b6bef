"""On a CUDA machine, a training of captured steps is the training, and goes on after a stop. Skipped elsewhere."""

import io
import os
import signal
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from training import MODEL, STEADY, before_call, language, same_weights, weights

from longshort.lab.tasks import LanguageModelling
from longshort.lab.train import StoppedError, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def captured(folder, **changes):
    """Caches reach their length after a few steps, so that most of the 16 are replays."""
    model = replace(MODEL, width=32, feedforward=64, layers=2)
    every = dict(steps=16, log_every=4, evaluate_every=8, save_every=5)
    return language(folder, **{**dict(model=model, graph=True, precision="fp32", optimizer=STEADY), **every, **changes})


def do(run, out, **keywords):
    return train(run, out, console=Console(file=io.StringIO()), **keywords)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_steps_are_the_steps(tmp_path, precision, dropout):
    run = captured(tmp_path, precision=precision)
    run = replace(run, model=replace(run.model, dropout=dropout))
    results = [do(replace(run, graph=graph), tmp_path / str(graph)) for graph in (True, False)]
    same_weights(*(weights(run, tmp_path / str(graph)) for graph in (True, False)), tolerance=1e-4)
    assert results[0].loss == pytest.approx(results[1].loss, rel=1e-4)
    assert results[0].metrics == pytest.approx(results[1].metrics, rel=1e-4)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("step", [2, 11])
def test_a_stopped_training_goes_on_as_if_nothing_had_been(tmp_path, monkeypatch, graph, step):
    run = captured(tmp_path, graph=graph)
    do(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        before_call(patch.setattr, LanguageModelling, "batch", step, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(StoppedError, match=f"step {step}"):
            do(run, tmp_path)
    do(run, tmp_path, resume=True)
    same_weights(weights(run, tmp_path), weights(run, tmp_path / "whole"), tolerance=1e-4)
