"""Run folders in JAX as earlier versions left them: they go on as they would have."""

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from earlier_runs import earlier
from flax import nnx
from rich.console import Console
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from longshort.jax import SequenceClassifier, from_torch, to_torch
from longshort.lab.jax.earlier import convert, run_of
from longshort.lab.jax.recipes import listops
from longshort.lab.jax.train import command_line, main, train
from longshort.lab.jax.trainer import STATE, WEIGHTS, Trainer
from longshort.lab.runs.checkpoints import check, read_facts
from longshort.lab.runs.errors import TrainingError
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import read_log
from longshort.models.sequence import SequenceClassifier as TorchClassifier

NAME = "jax.listops.w2r2.seed0"


@pytest.fixture
def old(tmp_path):
    """The run with its data where it is now, its folder, and what going on with it gave."""
    folder = earlier(tmp_path)
    expected = json.loads((folder / "expected.json").read_text())["jax"]
    run = run_of(expected["training"])
    source = listops(data=folder / "data" / "listops").task.source
    return replace(run, task=replace(run.task, source=source)), RunFolder(folder / "runs" / NAME), expected


def resumed(run, folder):
    return train(run, folder.path.parent, resume=True, console=Console(file=io.StringIO()))


def sums(path):
    return {name: value.astype(np.float64).sum() for name, value in load_file(path).items()}


def progress_of(folder, **changes):
    """Write last.safetensors anew, with other progress."""
    last = folder.path / "last.safetensors"
    with safe_open(last, "np") as file:
        record = file.metadata()
    record["progress"] = json.dumps({**json.loads(record["progress"]), **changes})
    save_file(load_file(last), last, metadata=record)


def test_a_run_goes_on_as_it_would_have(old):
    run, folder, expected = old
    result = resumed(run, folder)
    assert result.folder.name == NAME and RunFolder(folder.path).run == run
    for name in ("step", "best", "best_step", "test", "device"):
        assert getattr(result, name) == expected["result"][name], name
    arrays = dict(expected["arrays"])
    assert arrays.pop("160") == 4  # the count of the schedule, which depends on the step alone
    assert sums(folder.checkpoints.last() / STATE) == pytest.approx(arrays, abs=1e-5)
    assert sums(folder.checkpoints.best() / WEIGHTS) == pytest.approx(expected["best"], abs=1e-5)
    assert [line["step"] for line in read_log(folder.path) if "accuracy" in line] == [2, 4]
    assert not (folder.path / "last.safetensors").exists() and not (folder.path / "best").exists()
    TorchClassifier.from_pretrained(folder.checkpoints.best())


def test_its_best_model_is_read_by_jax_and_by_pytorch(old):
    run, folder, expected = old
    weights = load_file(folder.path / "best" / WEIGHTS)
    ours = from_torch(weights, SequenceClassifier(run.model, rngs=nnx.Rngs(0)))
    read = {name: value.astype(np.float64).sum() for name, value in to_torch(ours).items()}
    assert read == pytest.approx(expected["weights"], abs=1e-5)
    tokens = np.arange(1, 17)[None]
    theirs = TorchClassifier.from_pretrained(folder.path / "best").eval()
    np.testing.assert_allclose(ours(tokens), theirs(torch.from_numpy(tokens)).detach(), atol=1e-5)


def test_it_is_refused_as_a_folder_of_today_is(old):
    run, folder, _ = old
    with pytest.raises(TrainingError, match=f"{NAME} holds a run already"):
        train(run, folder.path.parent)
    with pytest.raises(TrainingError, match=r"optimizer.lr was 0.01, now 0.1"):
        resumed(replace(run, optimizer=replace(run.optimizer, lr=0.1)), folder)
    (run.task.source.path / "basic_test.tsv").write_text("Source\tTarget\n[MAX 1 2 ]\t2\n")
    with pytest.raises(TrainingError, match=r"data is not what .* had at step 2"):
        resumed(replace(run, task=replace(run.task)), folder)  # which reads its data anew


def test_the_best_of_another_step_stays_the_best(old):
    run, folder, expected = old
    progress_of(folder, best=0.9, best_step=1)
    result = resumed(run, folder)
    assert (result.best, result.best_step, result.test) == (0.9, 1, expected["result"]["test"])
    best = folder.checkpoints.best()
    assert check(best)["metrics"] == {"accuracy": 0.9} and check(best)["step"] == 1
    assert sums(best / WEIGHTS) == pytest.approx(expected["best"], abs=1e-5)
    assert sums(folder.checkpoints.last() / STATE).keys() == expected["arrays"].keys() - {"160"}


def test_before_its_first_evaluation_nothing_is_best(old):
    _, folder, _ = old
    progress_of(folder, best=-1.0, best_step=0)
    convert(folder, resume=True)
    facts = read_facts(folder.checkpoints.last())
    assert facts["best_step"] is None and facts["best"] == float("inf")


def test_a_conversion_that_was_interrupted_is_done_again(old, monkeypatch):
    run, folder, _ = old
    progress_of(folder, best=0.9, best_step=1)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "restore", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(folder, resume=True)
    assert folder.checkpoints.steps() == [1] and (folder.path / "best" / WEIGHTS).exists()
    assert resumed(run, folder).step == 4


def test_what_cannot_be_read_is_named(old, capsys):
    _, folder, _ = old
    whole = (folder.path / "last.safetensors").read_bytes()
    given = ["listops", "--attention", "2,2", "--out", str(folder.path.parent), "--resume"]
    (folder.path / "last.safetensors").write_bytes(whole[:1000])
    assert command_line(main, "train", given) == 1
    assert "last.safetensors cannot be read" in capsys.readouterr().err
    (folder.path / "last.safetensors").write_bytes(whole)
    progress_of(folder, best_step=1)
    shutil.rmtree(folder.path / "best")
    assert command_line(main, "train", given) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder.path / 'best' / WEIGHTS} cannot be read" in line
