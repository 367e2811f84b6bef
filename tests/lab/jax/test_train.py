"""Training in JAX: it is PyTorch's training, loses nothing, and leaves a model that PyTorch reads."""

import json
import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx
from safetensors.numpy import load_file

import longshort.lab.jax.bench as bench
import longshort.lab.jax.train as train
from longshort.lab.data.epochs import Epochs
from longshort.jax import from_torch, to_torch
from longshort.lab.jax.train import Trainer, Training, command_line, fit
from longshort.models.sequence import SequenceClassifier, SequenceConfig
from longshort.nn.spec import LongShort
from longshort.lab.recipes import lra
from longshort.lab.train import Schedule

JUDGED = 7  # at a time, so that a last batch is filled up
SMALL = Training("listops", attention="2,2", steps=6, warmup=2, longest=24, batch=8, rate=1e-2, evaluate_every=3)
NAME = "jax.listops.w2r2.seed0"


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """As the official files."""
    folder = tmp_path_factory.mktemp("lists")
    for name, count in dict(train=64, val=30, test=20).items():
        trees = [f"[MAX {i % 10} [MIN {i // 10} 9 ] ]\t{max(i % 10, i // 10)}\n" for i in range(count)]
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "".join(trees))
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_at_a_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "JUDGED", JUDGED)
        yield


@pytest.fixture(scope="module")
def whole(lists, tmp_path_factory):
    """A run that nothing disturbed: its folder, and what it gave."""
    out = tmp_path_factory.mktemp("out")
    return out / NAME, fit(SMALL, lists, out)


def test_what_is_best_is_a_model_of_pytorch(whole, lists):
    folder, result = whole
    assert json.loads((folder / "result.json").read_text()) == result and result["step"] == 6
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6] and result["best"] == max(line["accuracy"] for line in lines)
    model = SequenceClassifier.from_pretrained(folder / "best").eval()
    assert model.config == SequenceConfig(LongShort(2, 2), classes=10, length=1024)
    test = SMALL.splits(lists).test
    found = model(torch.from_numpy(test.sequences.padded(np.arange(20), 24))).argmax(1).numpy() == test.labels
    assert found.mean() == pytest.approx(result["test"])


def test_of_equal_evaluations_the_first_is_best(lists, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "accuracy", lambda trainer, split: 0.25)
    result = fit(replace(SMALL, evaluate_every=2), lists, tmp_path)
    assert result["best_step"] == 2 and result["best"] == 0.25


def test_what_is_best_is_read_back_as_it_was(lists, tmp_path):
    trainer = Trainer(SMALL)
    folder = train.Folder(tmp_path, SMALL, resume=False)
    folder.best.mkdir()
    before = to_torch(trainer.model(trainer.weights))
    folder.save_best(trainer)
    trainer.restore({name: np.zeros_like(value) for name, value in trainer.arrays.items()})
    folder.load_best(trainer)
    for name, value in to_torch(trainer.model(trainer.weights)).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_it_follows_the_training_of_pytorch(lists):
    """The same weights to begin with, the same batches, the same optimizer and rates: the same weights in the end."""
    torch.manual_seed(0)
    theirs = SequenceClassifier(SequenceConfig(LongShort(2, 2), classes=10, length=1024))
    trainer = Trainer(SMALL)
    trainer.weights = nnx.state(from_torch(theirs, trainer.model(trainer.weights)), nnx.Param)
    items, epochs, schedule = SMALL.splits(lists).train, Epochs(64, 8, 0), Schedule("linear", warmup=2)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, eps=1e-6, weight_decay=0.0)
    for step in range(6):
        which = epochs.at(step)
        tokens = items.sequences.padded(which, 24, 24)
        loss = F.cross_entropy(theirs(torch.from_numpy(tokens)), torch.from_numpy(items.labels[which]))
        optimizer.param_groups[0]["lr"] = 1e-2 * schedule.factor(step, 6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.learn(step + 1, tokens, items.labels[which]) == pytest.approx(loss.item(), abs=2e-5)
    ours = to_torch(trainer.model(trainer.weights))
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(ours[name], p.detach(), atol=2e-4, err_msg=name)  # of steps of 1e-2


def test_a_stopped_run_goes_on_as_if_nothing_had_been(whole, lists, tmp_path, monkeypatch):
    learn, sent = Trainer.learn, {2: signal.SIGINT, 4: signal.SIGTERM}

    def stopped(self, number, *batch):
        if number in sent:
            os.kill(os.getpid(), sent[number])
        return learn(self, number, *batch)

    monkeypatch.setattr(Trainer, "learn", stopped)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 2 of 6; go on with --resume"):
        fit(SMALL, lists, tmp_path)
    with pytest.raises(FileExistsError, match="holds a run: go on with --resume"):
        fit(SMALL, lists, tmp_path)
    with pytest.raises(ValueError, match=r"begun with other settings: rate was 0.01, now 0.1"):
        fit(replace(SMALL, rate=0.1), lists, tmp_path, resume=True)
    other = tmp_path / "other"
    shutil.copytree(lists, other)
    (other / "basic_test.tsv").write_text("Source\tTarget\n[MAX 1 2 ]\t2\n")
    with pytest.raises(ValueError, match="begun with other data"):
        fit(SMALL, other, tmp_path, resume=True)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 4 of 6; go on with --resume"):
        fit(SMALL, lists, tmp_path, resume=True)
    result = fit(SMALL, lists, tmp_path, resume=True)
    folder, expected = whole
    assert {**result, "seconds": 0} == {**expected, "seconds": 0}
    ours, theirs = (load_file(path / "last.safetensors") for path in (tmp_path / NAME, folder))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])


def test_a_signal_between_steps_loses_nothing(lists, tmp_path, monkeypatch):
    @contextmanager
    def bar(training, begun):
        yield lambda progress: progress.step == 2 and os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(train, "bar", bar)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 2"):
        fit(SMALL, lists, tmp_path)
    trainer = Trainer(SMALL)
    folder = train.Folder(tmp_path / NAME, SMALL, resume=True)
    assert folder.load(trainer, SMALL.splits(lists).fingerprint()).step == 2


def test_nothing_is_dropped_when_a_model_is_judged(lists):
    trainer, items = Trainer(replace(SMALL, dropout=0.9)), SMALL.splits(lists).dev
    theirs = SequenceClassifier(SequenceConfig(LongShort(2, 2), classes=10, length=1024)).eval()
    to_torch(trainer.model(trainer.weights), theirs)
    found = theirs(torch.from_numpy(items.sequences.padded(np.arange(30), 24))).argmax(1).numpy() == items.labels
    assert trainer.accuracy(items) == pytest.approx(found.mean())


def test_what_fills_a_batch_up_is_not_counted(lists):
    """For a model that says 0 of everything, an empty sequence too."""
    trainer, items = Trainer(SMALL), SMALL.splits(lists).dev
    model = trainer.model(trainer.weights)
    last = model.head.layers[2].bias
    last[...] = last[...].at[0].set(100.0)
    trainer.weights = nnx.state(model, nnx.Param)
    assert len(items) % JUDGED and trainer.accuracy(items) == pytest.approx((items.labels == 0).mean())


def test_a_loss_that_is_no_number_ends_the_run(lists, tmp_path):
    with pytest.raises(ValueError, match="the loss is nan at step 3"):
        fit(replace(SMALL, rate=float("nan")), lists, tmp_path)


def test_settings_are_those_of_the_recipes():
    for task, recipe in dict(listops=lra.listops, text=lra.text).items():
        ours, theirs = train.USUAL[task], recipe()
        assert (ours.steps, ours.warmup, ours.rate) == (theirs.steps, theirs.schedule.warmup, theirs.optimizer.lr)
        assert (ours.longest, ours.batch) == (theirs.task.length, theirs.task.sequences)
        assert ours.evaluate_every == theirs.evaluate_every
        for field in ("classes", "length", "layers", "width", "heads", "feedforward", "head", "dropout"):
            assert getattr(ours.model, field) == getattr(theirs.model, field), field
        assert ours.model.attention_dropout == theirs.model.attention_dropout
        assert (ours.model.attention.window, ours.model.attention.rank) == (8, 32)


def test_dropout_depends_on_the_step_alone():
    trainer = Trainer(replace(SMALL, dropout=0.5))
    tokens, labels = jnp.ones((8, 24), int), jnp.zeros(8, int)
    losses, begun = [], {name: value.copy() for name, value in trainer.arrays.items()}
    for number in (1, 1, 2):
        trainer.restore(begun)
        losses.append(float(trainer.learn(number, tokens, labels)))
    assert losses[0] == losses[1] != losses[2]


def test_the_command_line(lists, tmp_path, capsys):
    given = ["listops", "--data", str(lists), "--out", str(tmp_path), "--steps", "2", "--batch", "4", "--longest", "16"]
    run = [*given, "--attention", "full"]
    assert command_line(train.main, "train", run) == 0
    told = capsys.readouterr().out
    assert told.startswith("test: ") and "jax.listops.full.seed0" in told
    for changes, message in (
        ([], "holds a run"),
        (["--steps", "0"], "steps must be at least 1, got 0"),
        (["--attention", "0,0"], "both 0"),
        (["--attention", "poem"], "there is no attention 'poem'; there are WINDOW,RANK such as '8,32', and full,"),
        (["--seed", "1", "--batch", "0"], "batch must be at least 1, got 0"),
        (["--seed", "1", "--data", str(tmp_path / "none")], "none has no basic_train.tsv"),
        (["--seed", "1", "--batch", "100"], "a batch of 100 cannot be taken from 64 examples"),
    ):
        assert command_line(train.main, "train", [*run, *changes]) == 1
        *_, last = capsys.readouterr().err.splitlines()
        assert last.startswith("longshort.jax: ") and message in last
    assert [path.name for path in tmp_path.iterdir()] == ["jax.listops.full.seed0"]
    (tmp_path / "jax.listops.full.seed0" / "last.safetensors").write_bytes(b"broken")
    assert command_line(train.main, "train", [*run, "--resume"]) == 1
    assert "last.safetensors cannot be read" in capsys.readouterr().err


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
