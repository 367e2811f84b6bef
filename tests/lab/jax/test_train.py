"""Training in JAX: it is PyTorch's training, loses nothing, and leaves a model that PyTorch reads."""

import io
import json
import os
import shutil
import signal
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx
from rich.console import Console
from safetensors.numpy import load_file

import longshort.lab.jax.bench as bench
import longshort.lab.jax.train as train
from longshort.jax import from_torch, to_torch
from longshort.lab.jax.recipes import listops, resized, text
from longshort.lab.jax.tasks import check_run
from longshort.lab.jax.train import command_line
from longshort.lab.jax.trainer import STATE, WEIGHTS, Trainer, read_arrays, write_checkpoint
from longshort.lab.recipes import lra
from longshort.lab.runs.checkpoints import Checkpoints, check, read_facts
from longshort.lab.runs.errors import DivergedError, StoppedError, TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import Log, read_log
from longshort.lab.runs.optimizers import AdamW, Muon
from longshort.lab.runs.schedule import Schedule
from longshort.lab.train.optimizer import build_optimizer, set_rate
from longshort.models.sequence import SequenceClassifier, SequenceConfig
from longshort.nn.spec import LongShort

NAME = "jax.listops.w2r2.seed0"


def fit(run, out, resume=False):
    return train.train(run, out, resume=resume, console=Console(file=io.StringIO()))


def same(result):
    """What must not depend on where and how fast it was trained."""
    return {**vars(result), "folder": None, "seconds": None}


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """As the official files."""
    folder = tmp_path_factory.mktemp("lists")
    for name, count in dict(train=64, val=30, test=20).items():
        trees = [f"[MAX {i % 10} [MIN {i // 10} 9 ] ]\t{max(i % 10, i // 10)}\n" for i in range(count)]
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "".join(trees))
    return folder


@pytest.fixture(scope="module")
def small(lists):
    """Its last batch of an evaluation is filled up."""
    run = resized(listops("2,2", data=lists), steps=6, batch=8, longest=24, evaluate_every=3)
    task, optimizer = replace(run.task, evaluation_batch=7), replace(run.optimizer, lr=1e-2)
    return replace(run, task=task, optimizer=optimizer, schedule=Schedule("linear", warmup=2))


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """A run that nothing disturbed."""
    return fit(small, tmp_path_factory.mktemp("out"))


def test_what_is_best_is_a_model_of_pytorch(whole, small):
    folder = RunFolder(whole.folder)
    assert whole.folder.name == NAME and folder.run == small
    assert folder.result == {**vars(whole), "folder": str(whole.folder)} and whole.step == 6
    accuracy = {line["step"]: line["accuracy"] for line in read_log(whole.folder) if "accuracy" in line}
    assert list(accuracy) == [3, 6] and whole.best == max(accuracy.values()) == accuracy[whole.best_step]
    best = folder.checkpoints.best()
    assert read_facts(best)["best"] == -whole.best and read_facts(best)["step"] == whole.best_step
    assert folder.evaluated == {
        "run": NAME,
        "checkpoint": whole.best_step,
        "dev": whole.best,
        "accuracy": {"test": whole.test},
        "source": "ListOps without closing brackets, official",
        "data": small.task.fingerprint(),
        "precision": "float32",
        "device": "cpu",
    }
    test = small.task.splits.test
    tokens = torch.from_numpy(test.sequences.padded(np.arange(20), 24))
    model = SequenceClassifier.from_pretrained(best).eval()
    assert model.config == SequenceConfig(LongShort(2, 2), classes=10, length=1024)
    right = model(tokens).argmax(1).numpy() == test.labels
    assert right.mean() == pytest.approx(whole.test)


def test_of_equal_evaluations_the_first_is_best(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "accuracy", lambda trainer, split: 0.25)
    result = fit(replace(small, evaluate_every=2), tmp_path)
    assert result.best_step == 2 and result.best == 0.25
    assert RunFolder(result.folder).checkpoints.steps() == [2, 6]  # every better one, and the last


def test_a_checkpoint_is_read_back_as_it_was(small, tmp_path):
    trainer = Trainer(small)
    facts = dict(data="", metrics={}, best_step=None, best=0.0)
    write_checkpoint(Checkpoints(tmp_path), 1, trainer.files, facts)
    path, before = Checkpoints(tmp_path).last(), {name: value.copy() for name, value in trainer.arrays.items()}
    weights = to_torch(trainer.model(trainer.weights))
    trainer.restore({name: np.zeros_like(value) for name, value in before.items()})
    trainer.load_weights(read_arrays(path / WEIGHTS))
    for name, value in to_torch(trainer.model(trainer.weights)).items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    trainer.restore(read_arrays(path / STATE))
    for name, value in trainer.arrays.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_it_follows_the_training_of_pytorch(small, weight_decay):
    """The same weights to begin with, the same batches, the same optimizer and rates: the same weights in the end."""
    torch.manual_seed(0)
    theirs = SequenceClassifier(SequenceConfig(LongShort(2, 2), classes=10, length=1024))
    run = replace(small, optimizer=replace(small.optimizer, weight_decay=weight_decay))
    trainer, optimizer = Trainer(run), build_optimizer(run.optimizer, theirs)
    trainer.weights = nnx.state(from_torch(theirs, trainer.model(trainer.weights)), nnx.Param)
    for step in range(6):
        tokens, labels = run.task.batch(step)
        loss = F.cross_entropy(theirs(torch.from_numpy(tokens)), torch.from_numpy(labels))
        rate = run.schedule.factor(step, 6)
        set_rate(optimizer, rate)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.learn(step, rate, tokens, labels) == pytest.approx(loss.item(), abs=2e-5)
    ours = to_torch(trainer.model(trainer.weights))
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(ours[name], p.detach(), atol=2e-4, err_msg=name)  # of steps of 1e-2


def test_a_stopped_run_goes_on_as_if_nothing_had_been(whole, small, lists, tmp_path, monkeypatch):
    learn, sent = Trainer.learn, {1: signal.SIGINT, 3: signal.SIGTERM}

    def stopped(self, step, *batch):
        if step in sent:
            os.kill(os.getpid(), sent[step])
        return learn(self, step, *batch)

    monkeypatch.setattr(Trainer, "learn", stopped)
    with pytest.raises(StoppedError, match="step 2, which is saved"):
        fit(small, tmp_path)
    with pytest.raises(TrainingError, match="--resume"):
        fit(small, tmp_path)
    with pytest.raises(TrainingError, match=r"optimizer.lr was 0.01, now 0.1"):
        fit(replace(small, optimizer=replace(small.optimizer, lr=0.1)), tmp_path, resume=True)
    other = tmp_path / "other"
    shutil.copytree(lists, other)
    (other / "basic_test.tsv").write_text("Source\tTarget\n[MAX 1 2 ]\t2\n")
    changed = replace(small, task=replace(small.task, source=replace(small.task.source, path=other)))
    with pytest.raises(TrainingError, match=r"data is not what .* had at step 2"):
        fit(changed, tmp_path, resume=True)
    with pytest.raises(StoppedError, match="step 4, which is saved"):
        fit(small, tmp_path, resume=True)
    assert_same_run(fit(small, tmp_path, resume=True), whole)
    assert_same_run(fit(small, tmp_path, resume=True), whole)  # finished before


def assert_same_run(ours, theirs):
    assert same(ours) == same(theirs)
    ours, theirs = (RunFolder(each.folder).checkpoints for each in (ours, theirs))
    assert ours.best().name == theirs.best().name and ours.last().name == theirs.last().name
    for mine, other in ((ours.best() / WEIGHTS, theirs.best() / WEIGHTS), (ours.last() / STATE, theirs.last() / STATE)):
        mine, other = load_file(mine), load_file(other)
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_a_signal_between_steps_loses_nothing(small, tmp_path, monkeypatch):
    monkeypatch.setattr(Log, "move", lambda log, step: step == 2 and os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(StoppedError, match="step 2, which is saved"):
        fit(small, tmp_path)
    assert check(RunFolder(tmp_path / NAME).checkpoints.last())["step"] == 2


def test_an_evaluation_that_a_signal_left_out_is_made_later(whole, small, tmp_path, monkeypatch):
    accuracy = Trainer.accuracy

    def stopped(*given):
        monkeypatch.setattr(Trainer, "accuracy", accuracy)
        os.kill(os.getpid(), signal.SIGTERM)
        return accuracy(*given)

    monkeypatch.setattr(Trainer, "accuracy", stopped)
    with pytest.raises(StoppedError, match="step 3, which is saved; its evaluation is left"):
        fit(small, tmp_path)
    assert_same_run(fit(small, tmp_path, resume=True), whole)
    steps = [line["step"] for line in read_log(tmp_path / NAME) if "accuracy" in line]
    assert steps == [3, 6]


def test_nothing_is_dropped_in_an_evaluation(small):
    trainer, items = Trainer(replace(small, model=replace(small.model, dropout=0.9))), small.task.splits.dev
    theirs = SequenceClassifier(SequenceConfig(LongShort(2, 2), classes=10, length=1024)).eval()
    to_torch(trainer.model(trainer.weights), theirs)
    right = theirs(torch.from_numpy(items.sequences.padded(np.arange(30), 24))).argmax(1).numpy() == items.labels
    assert trainer.accuracy(items) == pytest.approx(right.mean())


def test_what_fills_a_batch_up_is_not_counted(small):
    """For a model that says 0 of everything, an empty sequence too."""
    trainer, items = Trainer(small), small.task.splits.dev
    model = trainer.model(trainer.weights)
    last = model.head.layers[2].bias
    last[...] = last[...].at[0].set(100.0)
    trainer.weights = nnx.state(model, nnx.Param)
    assert len(items) % small.task.evaluation_batch
    assert trainer.accuracy(items) == pytest.approx((items.labels == 0).mean())


@pytest.mark.parametrize(("log_every", "step"), [(1, 2), (100, 3)])
def test_a_loss_that_is_no_number_ends_the_run(small, tmp_path, log_every, step):
    endless = replace(small, optimizer=replace(small.optimizer, lr=float("inf")), log_every=log_every)
    with pytest.raises(DivergedError, match=f"at step {step} .*no earlier checkpoint"):
        fit(endless, tmp_path)
    assert RunFolder(tmp_path / NAME).checkpoints.last() is None


@pytest.mark.parametrize("task", ["listops", "text"])
def test_settings_are_those_of_the_recipes(task):
    ours, theirs = {"listops": (listops, lra.listops), "text": (text, lra.text)}[task]
    ours, theirs = ours(seed=3), theirs(seed=3)
    for field in ("steps", "optimizer", "schedule", "seed", "log_every", "evaluate_every", "save_every"):
        assert getattr(ours, field) == getattr(theirs, field), field
    for field in ("source", "length", "sequences", "order", "evaluation_batch"):
        assert getattr(ours.task, field) == getattr(theirs.task, field), field
    for field in ("classes", "length", "layers", "width", "heads", "feedforward", "head", "vocabulary", "pooling"):
        assert getattr(ours.model, field) == getattr(theirs.model, field), field
    assert ours.model.dropout == theirs.model.dropout
    assert ours.model.attention_dropout == theirs.model.attention_dropout
    assert (ours.model.attention.window, ours.model.attention.rank) == (8, 32)


def test_settings_that_mean_nothing_in_jax_are_refused(small, tmp_path):
    changes = dict(
        optimizer=Muon(),
        model=SequenceConfig(LongShort(2, 2), classes=10),
        task=lra.listops().task,
        clip=1.0,
        average=0.9,
        accumulate=2,
        precision="bf16",
        compile=True,
        graph=True,
        starts_from=replace(small, name="before"),
    )
    for name, value in changes.items():
        with pytest.raises(ValueError, match=f"^{name} must be .* in JAX, got "):
            fit(replace(small, **{name: value}), tmp_path)
    assert not [*tmp_path.iterdir()]
    check_run(replace(small, optimizer=AdamW(weight_decay=0.1)))


def test_dropout_depends_on_the_step_alone(small):
    trainer = Trainer(replace(small, schedule=Schedule(), model=replace(small.model, dropout=0.5)))
    tokens, labels = jnp.ones((8, 24), int), jnp.zeros(8, int)
    losses, begun = [], {name: value.copy() for name, value in trainer.arrays.items()}
    for step in (1, 1, 2):
        trainer.restore(begun)
        losses.append(float(trainer.learn(step, 1.0, tokens, labels)))
    assert losses[0] == losses[1] != losses[2]


def test_a_second_training_in_a_folder_is_refused(small, tmp_path):
    with RunFolder(tmp_path / NAME).locked(), pytest.raises(TrainingError, match=f"another process .*{NAME}"):
        fit(small, tmp_path)


def test_the_command_line(lists, tmp_path, capsys):
    given = ["listops", "--data", str(lists), "--out", str(tmp_path), "--steps", "2", "--batch", "4", "--longest", "16"]
    run = [*given, "--attention", "full"]
    assert command_line(train.main, "train", run) == 0
    told = capsys.readouterr().out
    assert told.startswith("test: ") and "jax.listops.full.seed0" in told
    for changes, message in (
        ([], "jax.listops.full.seed0 holds a run already"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--attention", "0,0"], "both 0"),
        (["--attention", "poem"], "there is no attention 'poem'; there are WINDOW,RANK such as '8,32', and full,"),
        (["--seed", "1", "--batch", "0"], "sequences must be at least 1, got 0"),
        (["--seed", "1", "--data", str(tmp_path / "none")], "none has no basic_train.tsv"),
        (["--seed", "1", "--batch", "100"], "a batch of 100 cannot be taken from 64 examples"),
    ):
        assert command_line(train.main, "train", [*run, *changes]) == 1
        *_, last = capsys.readouterr().err.splitlines()
        assert last.startswith("longshort.jax: ") and message in last
    assert [path.name for path in tmp_path.iterdir()] == ["jax.listops.full.seed0"]
    assert command_line(train.main, "train", ["text", "--brackets"]) == 1
    assert "brackets" in capsys.readouterr().err
    without_steps = [word for word in run if word not in ("--steps", "2")]
    assert command_line(train.main, "train", [*without_steps, "--resume"]) == 0
    assert "was finished before" in capsys.readouterr().err
    (RunFolder(tmp_path / "jax.listops.full.seed0").checkpoints.last() / STATE).write_bytes(b"broken")
    assert command_line(train.main, "train", [*run, "--resume"]) == 1
    assert f"step_00000002 is corrupt: {STATE}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("file", ["run.json", "checkpoint.json", STATE])
def test_a_damaged_file_is_named_in_one_line(whole, small, tmp_path, file):
    folder = RunFolder(tmp_path / NAME)
    shutil.copytree(whole.folder, folder.path)
    damaged = folder.record if file == "run.json" else folder.checkpoints.last() / file
    damaged.write_bytes(b"{broken")
    with pytest.raises((TrainingError, ValueError)) as error:
        fit(small, tmp_path, resume=True)
    (line,) = str(error.value).splitlines()
    assert str(damaged.parent) in line and file in line


def test_steps_are_timed_and_written(tmp_path, monkeypatch, capsys):
    small = dict(length=40, layers=1, width=16, heads=2, feedforward=16, head=8)
    monkeypatch.setattr(bench, "SIZES", {name: replace(size, **small) for name, size in bench.SIZES.items()})
    given = ["--batch", "2", "--repeats", "2", "--out", str(tmp_path / "new" / "steps.json")]
    assert command_line(bench.main, "bench", [*given, "--only", "retrieval"]) == 0
    told = capsys.readouterr().out
    facts = json.loads((tmp_path / "new" / "steps.json").read_text())
    assert [line["attention"] for line in facts["steps"]] == list(bench.PAPER)
    assert {*bench.PAPER, bench.ON_GPUS} == set(bench.ATTENTIONS)
    for line in facts["steps"]:
        assert line["ms"] > 0 and line["mib"] > 0 and line["attention"] in told
    assert command_line(bench.main, "bench", [*given, "--only", "poem"]) == 1
    assert command_line(bench.main, "bench", ["--batch", "0"]) == 1
    assert command_line(bench.main, "bench", ["--out", str(tmp_path)]) == 1
    first, second, third = capsys.readouterr().err.splitlines()
    assert "no case has 'poem' in its name" in first and "batch and repeats must be at least 1" in second
    assert "out must be a file, and" in third
