"""The time of a step is a mean over steps of a real training, which leaves nothing behind."""

import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pytest

from longshort.lab.bench import step
from longshort.lab.bench.step import WARM, measured_step
from longshort.lab.data.listops import ListOps
from longshort.lab.tasks import Classification
from longshort.lab.train import Run
from longshort.lab.train.fit import TorchLoop
from longshort.models.sequence import SequenceConfig
from longshort.nn.spec import LongShort

MODEL = SequenceConfig(LongShort(4, 2), classes=10, length=32, layers=1, width=16, heads=2, feedforward=16, head=8)
RUN = Run("tiny", MODEL, Classification(ListOps(train=20, dev=4, test=4), length=30, sequences=4), 5, evaluate_every=1)


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """To work in, and for what is there for a while."""
    folders = [tmp_path / "work", tmp_path / "temporary"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(folders[1]))
    monkeypatch.chdir(folders[0])
    return folders


def test_it_takes_some_time_and_leaves_nothing(folders, capsys):
    assert 0 < measured_step(RUN, steps=3, cpu=True).ms < 10_000
    assert [list(folder.iterdir()) for folder in folders] == [[], []]
    assert capsys.readouterr().out == ""


def test_nothing_is_left_when_it_fails(folders, monkeypatch):
    def fails(loop, rate):
        raise RuntimeError("no memory")

    monkeypatch.setattr(TorchLoop, "update", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        measured_step(RUN, steps=3, cpu=True)
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_a_run_that_starts_from_another_is_timed_without_it(folders):
    assert measured_step(replace(RUN, name="second", starts_from=RUN), steps=1, cpu=True).ms > 0
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


@pytest.mark.parametrize(("steps", "warm"), [(4, 4), (40, WARM)])
def test_it_is_the_mean_of_the_steps_that_count(steps, warm, monkeypatch):
    """Of updates alone: neither the first ones nor evaluations are among them."""
    done, asked = [], []

    def clock():
        asked.append(len(done))
        return 100.0 + 0.5 * len(asked)

    monkeypatch.setattr(TorchLoop, "update", lambda loop, rate: done.append(rate))
    monkeypatch.setattr(Classification, "evaluators", lambda *_: pytest.fail("no evaluation belongs to a step"))
    monkeypatch.setattr(step, "time", SimpleNamespace(perf_counter=clock))
    assert measured_step(RUN, steps=steps, cpu=True).ms == pytest.approx(500 / steps)
    assert asked == [warm, warm + steps] and set(done) == {1.0}


def test_a_step_of_it_is_a_step_of_the_training(monkeypatch):
    """Data, forward and backward pass, optimizer."""
    seen, update = [], TorchLoop.update

    def watched(loop, rate):
        before = [p.detach().clone() for p in loop.model.parameters()]
        tokens = update(loop, rate)
        seen.append((tokens, sum(int((p != b).any()) for p, b in zip(loop.model.parameters(), before, strict=True))))

    monkeypatch.setattr(TorchLoop, "update", watched)
    measured_step(RUN, steps=2, cpu=True)
    assert [tokens for tokens, _ in seen] == [RUN.task.size(RUN.task.batch(i, 0, 1)) for i in range(4)]
    assert all(changed > 10 for _, changed in seen)
