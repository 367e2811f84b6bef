"""A training that was stopped, killed or broken off goes on as if nothing had been; what it keeps and tells is true."""

import io
import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from apart import apart, train_until
from evaluations import shares
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.tensorboard import SummaryWriter
from training import (
    ADAMW,
    MODEL,
    MUON,
    STEADY,
    CountingConfig,
    Points,
    Score,
    before_call,
    checkpoints,
    do,
    full,
    language,
    outcome,
    points,
    same_weights,
    weights,
)

from longshort.lab.runs.files import write_json
from longshort.lab.runs.log import Log, read_log
from longshort.lab.train import (
    AdamW,
    CheckpointError,
    DivergedError,
    Schedule,
    StoppedError,
    TrainingError,
    train,
)
from longshort.lab.train.fit import TorchLoop
from longshort.models.charlm import CharLM
from longshort.serial import as_json, from_json


def send(number):
    return lambda: os.kill(os.getpid(), number)


def without(result, *names):
    return {name: value for name, value in vars(result).items() if name not in names}


@pytest.mark.parametrize("optimizer, accumulate, first", [(ADAMW, 1, 1), (MUON, 2, 4)])
def test_a_killed_training_ends_as_an_undisturbed_one(tmp_path, optimizer, accumulate, first):
    run = language(tmp_path, optimizer=optimizer, accumulate=accumulate)
    assert apart(train_until, None, run, tmp_path / "whole") == [0]
    expected = outcome(run, tmp_path / "whole")
    moments = (tmp_path / "whole" / "moments").read_text().split()
    chosen = sorted({*range(first, len(moments), 8), len(moments) - 1})
    kinds = {"clip_grad_norm_", "write", "fsync", "rename", "unlink", "replace", "numbers"}
    assert kinds == set(moments) and len({moments[at] for at in chosen}) >= 5
    for at in chosen:
        out = tmp_path / str(at)
        assert apart(train_until, at, run, out) == [-signal.SIGKILL]
        assert apart(train_until, None, run, out) == [0]
        assert outcome(run, out) == expected, f"killed at moment {at}: {moments[at]}"


def test_a_training_may_be_killed_again_and_again(tmp_path):
    run = language(tmp_path)
    assert apart(train_until, None, run, tmp_path / "whole") == [0]
    codes = [apart(train_until, 36, run, tmp_path)[0] for _ in range(4)]
    assert codes[:2] == [-signal.SIGKILL] * 2 and codes[-1] == 0
    assert outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [3, 4])  # between two lines of the log, and at one
def test_a_signal_stops_after_a_step_that_is_saved(tmp_path, monkeypatch, number, step):
    run = language(tmp_path, save_every=100, evaluate_every=100)
    do(run, tmp_path / "whole")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        before_call(patch.setattr, type(run.task), "batch", step, send(number))
        with pytest.raises(StoppedError, match=f"stopped at step {step}, which is saved$"):
            do(run, tmp_path)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert checkpoints(run, tmp_path).steps() == [step]
    do(run, tmp_path, resume=True)
    resumed, whole = outcome(run, tmp_path), outcome(run, tmp_path / "whole")
    assert resumed.pop("left") != whole.pop("left")
    assert resumed == whole


def test_a_second_interrupt_is_one(tmp_path, monkeypatch):
    run = points()
    handler = signal.getsignal(signal.SIGINT)
    for n in (3, 4):
        before_call(monkeypatch.setattr, Points, ("batch", "loss")[n - 3], 3, send(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        do(run, tmp_path)
    assert checkpoints(run, tmp_path).steps() == [2]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_sigterm_changes_nothing(tmp_path, monkeypatch):
    for name in ("batch", "loss"):
        before_call(monkeypatch.setattr, Points, name, 3, send(signal.SIGTERM))
    with pytest.raises(StoppedError, match="stopped at step 3"):
        do(points(), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_data_is_read_is_obeyed_at_once(tmp_path, monkeypatch, number, capsys):
    """There is no step to wait for, and nothing to save; the training begins later as if nothing had been."""
    run = points()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_call(patch.setattr, Points, "fingerprint", 1, send(number))
        do(run, tmp_path)
    assert not (tmp_path / run.name).exists() and "stopping" not in capsys.readouterr().err
    do(run, tmp_path)
    assert checkpoints(run, tmp_path).last() is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("call, step", [(1, 3), (2, 6)])  # in the middle of the run, and at its end
@pytest.mark.parametrize("when", ["before", "in"])
def test_a_signal_leaves_an_evaluation_which_is_made_later(tmp_path, monkeypatch, number, call, step, when):
    run = points(scores=(9, 9, 9, 1.0, 9, 9, 2.0), evaluate_every=3, save_every=100)
    do(run, tmp_path / "whole")
    found = []
    with monkeypatch.context() as patch:
        if when == "in":
            before_call(patch.setattr, Score, "run", call, lambda: (torch.rand(3), send(number)()))
        else:
            before_call(patch.setattr, Points, "batch", step, send(number))
        with pytest.raises(
            StoppedError, match=f"stopped at step {step}, which is saved; its evaluation is left for later"
        ):
            do(run, tmp_path)
        assert checkpoints(run, tmp_path).steps()[-1] == step
        before_call(patch.setattr, Score, "run", 1, lambda: found.append(1))
        do(run, tmp_path, resume=True)
    assert len(found) == 1 and outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


def stopped_in_its_evaluation(run, out, call=1):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        before_call(patch.setattr, Score, "run", call, send(signal.SIGTERM))
        do(run, out)


def test_a_kill_while_an_evaluation_is_made_up_for_loses_nothing(tmp_path):
    run = points(scores=(9, 9, 9, 1.0), evaluate_every=3, save_every=100, clip=1.0)
    do(run, tmp_path / "whole")
    stopped_in_its_evaluation(run, tmp_path / "stopped")
    shutil.copytree(tmp_path / "stopped", tmp_path / "counted")
    assert apart(train_until, None, run, tmp_path / "counted") == [0]
    moments = (tmp_path / "counted" / "moments").read_text().split()
    before_a_step = moments.index("clip_grad_norm_")
    assert {"numbers", "replace"} <= set(moments[:before_a_step])
    for at in range(before_a_step + 1):
        out = tmp_path / str(at)
        shutil.copytree(tmp_path / "stopped", out)
        assert apart(train_until, at, run, out) == [-signal.SIGKILL]
        assert checkpoints(run, out).steps() == [3]
        do(run, out, resume=True)
        assert outcome(run, out) == outcome(run, tmp_path / "whole"), f"killed at moment {at}: {moments[at]}"


def test_a_signal_just_before_an_evaluation_leaves_it(tmp_path, monkeypatch):
    before_call(monkeypatch.setattr, Log, "doing", 1, send(signal.SIGTERM))
    with pytest.raises(StoppedError, match="stopped at step 3, which is saved; its evaluation is left"):
        do(points(evaluate_every=3), tmp_path)


def test_an_evaluation_is_not_made_up_for_on_other_data(tmp_path, monkeypatch):
    run = points()
    stopped_in_its_evaluation(run, tmp_path)
    monkeypatch.setattr(Points, "fingerprint", lambda task: "other")
    with pytest.raises(TrainingError, match=r"data is not what .* had at step 6"):
        do(run, tmp_path, resume=True)


def test_an_evaluation_may_be_left_again_and_again(tmp_path, monkeypatch):
    run = points(scores=(9, 9, 9, 1.0), evaluate_every=3, save_every=100)
    do(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        before_call(patch.setattr, Score, "run", 1, send(signal.SIGTERM))
        before_call(patch.setattr, Score, "run", 2, send(signal.SIGTERM))
        for words in ("which is saved; its evaluation", "which was saved before"):
            with pytest.raises(StoppedError, match=f"stopped at step 3, {words}"):
                do(run, tmp_path, resume=True)
    do(run, tmp_path, resume=True)
    assert outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


def test_trains_in_a_thread_which_cannot_have_signals(tmp_path):
    run = points()
    do(run, tmp_path / "whole")
    thread = threading.Thread(target=do, args=(run, tmp_path))
    thread.start()
    thread.join()
    assert outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


@pytest.mark.parametrize("what", ["nan", "poison"])
def test_numbers_that_are_none_stop_a_training_and_are_never_saved(tmp_path, what):
    run = points(**{what: (4,)}, steps=20, save_every=1, log_every=3)
    with pytest.raises(DivergedError) as e:
        do(run, tmp_path)
    last = checkpoints(run, tmp_path).last()
    assert last.name == "step_00000004" and str(last) in str(e.value)
    assert "learning rate" in str(e.value)
    assert all(t.isfinite().all() for t in weights(run, tmp_path).values())
    sound = points(steps=20, save_every=1, log_every=3)
    write_json(tmp_path / "points" / "run.json", as_json(sound))  # else it would tell that this is another task
    result, _ = do(sound, tmp_path, resume=True)  # the last one is good
    assert result.step == 20


def test_says_when_a_diverged_training_has_no_checkpoint(tmp_path):
    with pytest.raises(DivergedError, match=r"the loss is nan at step 2 .* there is no earlier checkpoint"):
        do(points(nan=(0,)), tmp_path)


def test_a_second_start_is_refused(tmp_path):
    run = points()
    do(run, tmp_path)
    before = outcome(run, tmp_path)
    with pytest.raises(TrainingError, match=rf"{tmp_path}/points holds a run already: go on with --resume"):
        do(replace(run, seed=5), tmp_path)
    assert outcome(run, tmp_path) == before


def test_a_finished_training_is_not_done_again(tmp_path, monkeypatch):
    run = points()
    first, _ = do(run, tmp_path)
    monkeypatch.setattr(Points, "batch", None)
    again, printed = do(run, tmp_path, resume=True)
    assert again == first
    assert "was finished before" in printed


def test_resume_without_a_checkpoint_begins(tmp_path):
    run = points()
    do(run, tmp_path / "whole")
    do(run, tmp_path, resume=True)
    assert outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


def test_a_longer_run_goes_on_from_a_shorter_one_and_not_the_reverse(tmp_path):
    run = points(save_every=3)
    do(replace(run, steps=3), tmp_path)
    do(run, tmp_path, resume=True)
    do(run, tmp_path / "whole")
    same_weights(weights(run, tmp_path), weights(run, tmp_path / "whole"))
    with pytest.raises(TrainingError, match="is of step 6, and the run has 3 steps"):
        do(replace(run, steps=3), tmp_path, resume=True)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(model=CountingConfig(width=2)), ["does not fit", "line.weight", "step_00000006"]),
        (dict(optimizer=MUON), ["does not fit", "step_00000006"]),
        (dict(accumulate=2), ["accumulate 1", "2", "step_00000006"]),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_the_record_stays(tmp_path, changes, words):
    run = points()
    do(run, tmp_path)
    record = tmp_path / "points" / "run.json"
    if "accumulate" not in changes:
        with pytest.raises(TrainingError, match=f"begun with other settings: {next(iter(changes))}.* was .*, now "):
            do(replace(run, steps=8, **changes), tmp_path, resume=True)
        assert json.loads(record.read_text())["steps"] == 6
        write_json(record, as_json(replace(run, **changes)))  # the checkpoint itself is looked at next
    with pytest.raises(CheckpointError) as e:
        do(replace(run, steps=8, **changes), tmp_path, resume=True)
    assert all(word in str(e.value) for word in words), str(e.value)
    assert not record.exists() or json.loads(record.read_text())["steps"] == 6


@pytest.mark.parametrize("change", [lambda text: text + b"more", lambda text: b"X" + text[1:]], ids=["longer", "other"])
def test_a_run_does_not_go_on_with_other_data(tmp_path, change):
    run, text = language(tmp_path, steps=3), tmp_path / "text"
    do(run, tmp_path)
    before = text.read_bytes()
    text.write_bytes(change(before))
    with pytest.raises(TrainingError, match=r"data is not what .* had at step 3"):
        do(replace(run, steps=5, task=replace(run.task)), tmp_path, resume=True)
    text.write_bytes(before)
    do(replace(run, steps=5, task=replace(run.task)), tmp_path, resume=True)
    assert checkpoints(run, tmp_path).steps()[-1] == 5


def test_a_finished_run_needs_its_text_no_more(tmp_path):
    run = language(tmp_path, steps=3)
    do(run, tmp_path)
    (tmp_path / "text").write_bytes(b"something else entirely " * 100)
    assert "was finished before" in do(replace(run, task=replace(run.task)), tmp_path, resume=True)[1]


def test_a_record_may_lack_a_newer_field(tmp_path):
    run = language(tmp_path, steps=3)
    do(run, tmp_path)
    path = tmp_path / run.name / "run.json"
    record = json.loads(path.read_text())
    del record["model"]["dual_norm"]
    path.write_text(json.dumps(record))
    do(replace(run, steps=5), tmp_path, resume=True)
    assert checkpoints(run, tmp_path).steps()[-1] == 5


def test_a_run_below_its_own_text_does_not_read_itself(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    run = language(folder)
    run = replace(run, steps=3, task=replace(run.task, source=replace(run.task.source, path=folder)))
    do(run, folder / "out")
    do(replace(run, steps=5, task=replace(run.task)), folder / "out", resume=True)
    assert checkpoints(run, folder / "out").steps()[-1] == 5


def test_a_run_starts_from_the_last_weights_of_the_one_before(tmp_path):
    first = points(name="first", scores=(9, 9, 1, 9, 2, 9, 3), evaluate_every=2)
    second = points(name="second", steps=2, optimizer=AdamW(lr=0.0, weight_decay=0.0), starts_from=first)
    result, printed = do(second, tmp_path)
    assert result.folder == tmp_path / "second"
    assert printed.index("first: 6 steps") < printed.index("second: 2 steps")
    best = checkpoints(first, tmp_path).best()
    assert best.name == "step_00000002"
    mine, last = weights(second, tmp_path), weights(first, tmp_path)
    for name in ("line.weight", "line.bias"):
        assert torch.equal(mine[name], last[name])
        assert not torch.equal(mine[name], load_file(best / "model.safetensors")[name])


def test_a_chain_goes_on_in_its_middle(tmp_path, monkeypatch):
    chain = points(name="third", starts_from=points(name="second", starts_from=points(name="first")))
    do(chain, tmp_path / "whole")
    with monkeypatch.context() as patch:
        before_call(patch.setattr, Points, "batch", 6 + 3, send(signal.SIGINT))
        with pytest.raises(StoppedError, match="step 3"):
            do(chain, tmp_path)
    assert not (tmp_path / "third").exists()
    with pytest.raises(TrainingError, match="first holds a run already"):
        do(chain, tmp_path)
    with monkeypatch.context() as patch:
        steps = []
        before = Points.batch
        patch.setattr(Points, "batch", lambda *a: steps.append(a[1]) or before(*a))
        do(chain, tmp_path, resume=True)
    assert steps == [3, 4, 5, 0, 1, 2, 3, 4, 5]
    for run in chain.chain:
        same_weights(weights(run, tmp_path), weights(run, tmp_path / "whole"))


def test_a_signal_in_the_last_step_of_a_run_stops_the_next(tmp_path, monkeypatch):
    chain = points(name="second", starts_from=points(name="first"))
    before_call(monkeypatch.setattr, TorchLoop, "save", 3, send(signal.SIGTERM))
    with pytest.raises(StoppedError, match="step 1"):
        do(chain, tmp_path)
    assert checkpoints(chain.chain[0], tmp_path).steps()[-1] == 6
    assert checkpoints(chain, tmp_path).steps() == [1]


def test_what_a_run_starts_from_must_be_there_and_fit(tmp_path):
    first = points(name="first")
    do(replace(first, model=CountingConfig(), steps=2), tmp_path)
    wide = replace(points(name="second", starts_from=replace(first, steps=2)), model=CountingConfig(width=2))
    with pytest.raises(CheckpointError, match=r"(?s)weights of .*step_00000002 do not fit this model: .*line.weight"):
        do(wide, tmp_path, resume=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_and_the_last_two_are_kept(tmp_path, sign):
    scores = tuple(sign * x for x in (0, 9, 8, 3, 4, 5, 4, 3.5, 4))  # the best after 3 steps
    run = points(scores=scores, higher_is_better=sign < 0, steps=8, save_every=1, evaluate_every=1)
    result, _ = do(run, tmp_path)
    assert result.best_step == 3 and result.metrics == {"score": scores[8]}
    assert checkpoints(run, tmp_path).steps() == [3, 7, 8]
    assert checkpoints(run, tmp_path).best().name == "step_00000003"
    assert checkpoints(run, tmp_path).last().name == "step_00000008"


def test_what_is_better_is_saved_at_once_and_before_a_resume_counts(tmp_path):
    run = points(scores=(0, 5, 4, 6, 7, 3, 8), steps=4, save_every=100, evaluate_every=1)
    do(run, tmp_path)
    assert checkpoints(run, tmp_path).steps() == [2, 4]
    result, _ = do(replace(run, steps=6), tmp_path, resume=True)
    assert result.best_step == 5
    result, _ = do(replace(run, steps=3), tmp_path / "short")
    result, _ = do(replace(run, steps=4), tmp_path / "short", resume=True)
    assert result.best_step == 2  # no worse one after the resume has become the best


def test_a_metric_that_is_no_number_is_never_the_best(tmp_path):
    run = points(scores=(0, float("nan"), 2.0, float("nan")), steps=3, evaluate_every=1)
    result, _ = do(run, tmp_path)
    assert result.best_step == 2
    assert do(points(name="never", scores=(0,) + (float("nan"),) * 6), tmp_path)[0].best_step == 0
    assert checkpoints(points(name="never"), tmp_path).best().name == "step_00000006"


def test_parts_of_a_batch_are_the_batch(tmp_path):
    model = replace(MODEL, dropout=0.0)
    runs = [language(tmp_path, name=f"by {n}", model=model, optimizer=STEADY, accumulate=n) for n in (1, 2, 4)]
    results = [do(run, tmp_path)[0] for run in runs]
    for run, result in zip(runs[1:], results[1:], strict=True):
        same_weights(weights(run, tmp_path), weights(runs[0], tmp_path), tolerance=1e-6)
        assert result.loss == pytest.approx(results[0].loss, rel=1e-6)
        assert result.metrics == pytest.approx(results[0].metrics, rel=1e-6)


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path):
    with pytest.raises(ValueError, match="batch of 4 cannot be divided over 3"):
        do(language(tmp_path, accumulate=3), tmp_path)


def test_batches_depend_on_the_step_alone(tmp_path):
    task = language(tmp_path).task
    other = replace(task)
    for step in (5, 2, 400, 0):
        assert torch.equal(task.batch(step, 0, 1), other.batch(step, 0, 1))
        assert torch.equal(torch.cat([other.batch(step, part, 2) for part in range(2)]), task.batch(step, 0, 1))


@pytest.mark.parametrize("make", [lambda folder: language(folder), lambda folder: points(draws=True)])
def test_evaluating_does_not_disturb(tmp_path, make):
    often = replace(make(tmp_path), evaluate_every=1, save_every=100)
    seldom = replace(often, evaluate_every=100)
    do(often, tmp_path / "often")
    do(seldom, tmp_path / "seldom")
    same_weights(weights(often, tmp_path / "often"), weights(seldom, tmp_path / "seldom"))


def test_seeds_differ_and_decide(tmp_path):
    runs = [language(tmp_path, name=f"{i}", seed=seed, steps=2) for i, seed in enumerate((0, 0, 1))]
    for run in runs:
        do(run, tmp_path)
    same_weights(weights(runs[0], tmp_path), weights(runs[1], tmp_path))
    with pytest.raises(AssertionError):
        same_weights(weights(runs[0], tmp_path), weights(runs[2], tmp_path))


def test_a_checkpoint_is_a_model(tmp_path):
    run = language(tmp_path)
    result, _ = do(run, tmp_path)
    model = CharLM.from_pretrained(checkpoints(run, tmp_path).best()).eval()
    assert model.config == run.model
    bits, count = shares(run.task, model)["bpc"]
    assert bits / count == pytest.approx(result.metrics["bpc"], rel=1e-6)


def test_runs_of_one_process_may_differ_in_precision(tmp_path):
    first = language(tmp_path, name="first", precision="fp32", steps=2)
    last = language(tmp_path, name="last", precision="bf16", steps=2, starts_from=first)
    result, _ = do(last, tmp_path)
    assert 0 < result.loss < 10
    assert all(t.dtype == torch.float32 for t in weights(last, tmp_path).values())
    plain = replace(last, name="plain", precision="fp32")
    do(plain, tmp_path, resume=True)
    assert not torch.equal(*(weights(run, tmp_path)["embedding.weight"] for run in (last, plain)))


def test_the_rate_follows_the_schedule_also_after_a_resume(tmp_path, monkeypatch):
    run = points(schedule=Schedule("linear", warmup=2), log_every=1)
    before_call(monkeypatch.setattr, Points, "batch", 3, send(signal.SIGINT))
    with pytest.raises(StoppedError):
        do(run, tmp_path)
    do(run, tmp_path, resume=True)
    rates = [line["rate"] for line in read_log(tmp_path / "points") if "rate" in line]
    assert rates == [run.schedule.factor(step, 6) for step in range(6)]


def test_what_is_told(tmp_path):
    run = points(scores=(0, 0, 0, 0, 2.5, 0, 1.5), evaluate_every=4, log_every=3)
    result, printed = do(run, tmp_path)
    warning, progress, finish, end = printed.splitlines()
    assert warning.startswith("points can be trained, but not opened later: ") and "training:" in warning
    assert progress.startswith("step 3 of 6  loss ") and "points/s" in progress and progress.endswith("left")
    assert finish.startswith("step 6 of 6  loss ") and "score 2.5000" in finish
    assert end.startswith("points: 6 steps in 0:00:00  score 1.5000, ") and str(tmp_path / "points") in end
    losses = {"step", "loss", "rate", "points_per_second", "seconds"}
    first, middle, last, score = read_log(tmp_path / "points")
    assert first.keys() == last.keys() == losses
    assert middle == {"step": 4, "score": 2.5} and score == {"step": 6, "score": 1.5}
    assert (first["step"], last["step"]) == (3, 6) and 0 < first["seconds"] <= last["seconds"] <= result.seconds
    written = json.loads((tmp_path / "points" / "result.json").read_text())
    assert written == {**vars(result), "folder": str(result.folder)}


def test_where_the_log_is_slow_a_line_comes_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("longshort.lab.runs.log.PATIENCE", -1.0)
    _, printed = do(points(log_every=5), tmp_path)
    assert [line.partition("  ")[0] for line in printed.splitlines()[1:7]] == [f"step {i} of 6" for i in range(1, 7)]
    assert len(read_log(tmp_path / "points")) == 3  # of steps 5 and 6, and the evaluation


def test_on_a_terminal_one_line_moves(tmp_path):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=150)
    train(points(), tmp_path, cpu=True, console=terminal)
    printed = terminal.file.getvalue()
    assert "step 6 of 6  loss" in printed and "points/s" in printed
    assert "\x1b[2K" in printed and "points: 6 steps" in printed
    with pytest.raises(DivergedError):
        train(points(name="nan", nan=(0,)), tmp_path, cpu=True, console=terminal)
    assert terminal.file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_an_evaluation_is_told_while_it_lasts(tmp_path):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=150)
    log = Log(tmp_path, "run", 6, step=0, evaluation_due=False, quiet=False, console=terminal)
    with log.doing("evaluating"):
        assert log.bar.tasks[0].fields["status"] == "starting  evaluating"
    assert log.bar.tasks[0].fields["status"] == "starting"
    log.close()


def test_the_run_is_written_down(tmp_path):
    run = language(tmp_path, steps=2, starts_from=language(tmp_path, name="before", steps=1))
    do(run, tmp_path)
    assert from_json(json.loads((tmp_path / "language" / "run.json").read_text())) == run


def test_the_logged_loss_is_the_mean_since_the_last_line(tmp_path):
    each, pairs = points(name="each", log_every=1), points(name="pairs", log_every=2)
    for run in (each, pairs):
        do(run, tmp_path)
    ones, twos = ([line["loss"] for line in read_log(tmp_path / r.name) if "loss" in line] for r in (each, pairs))
    assert twos == pytest.approx([(a + b) / 2 for a, b in zip(ones[::2], ones[1::2], strict=True)])


def test_tensorboard_shows_what_the_log_says_after_a_kill_too(tmp_path):
    run = language(tmp_path)
    assert apart(train_until, 37, run, tmp_path) == [-signal.SIGKILL]
    do(run, tmp_path, resume=True)
    events = [
        e
        for path in sorted((tmp_path / "language" / "tensorboard").iterdir())
        for e in EventFileLoader(str(path)).Load()
    ]
    found = {(e.step, v.tag) for e in events for v in e.summary.value}
    noted = {(line["step"], name) for line in read_log(tmp_path / "language") for name in line if name != "step"}
    assert found == noted


def test_tensorboard_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result, printed = do(points(), tmp_path)
    assert result.step == 6
    assert "tensorboard is not installed" in printed
    assert read_log(tmp_path / "points") and not (tmp_path / "points" / "tensorboard").exists()


@pytest.mark.parametrize("name", ["log.jsonl", "tensorboard", "checkpoints", "run.json"])
def test_a_folder_that_cannot_be_written_is_named_at_once(tmp_path, name):
    run = points(steps=1)
    (tmp_path / "points").mkdir()
    if name in ("log.jsonl", "run.json"):
        (tmp_path / "points" / name / "in the way").mkdir(parents=True)
    else:
        (tmp_path / "points" / name).touch()
    with pytest.raises(TrainingError, match=rf"cannot write in {tmp_path}/points: .*give another folder"):
        do(run, tmp_path)


def test_a_file_in_the_way_of_the_folder_is_named(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(TrainingError, match=rf"cannot write in {tmp_path}/out/points: .*give another folder"):
        do(points(), tmp_path / "out")


def test_a_log_that_cannot_grow_stops_a_training_which_goes_on_later(tmp_path, monkeypatch):
    run = points()
    do(run, tmp_path / "whole")

    with monkeypatch.context() as patch:
        before_call(patch.setattr, SummaryWriter, "add_scalar", 6, full)
        with pytest.raises(TrainingError, match=rf"cannot write in {tmp_path}/points: No space left.*--resume"):
            do(run, tmp_path)
    do(run, tmp_path, resume=True)
    assert outcome(run, tmp_path) == outcome(run, tmp_path / "whole")


def test_the_speed_has_in_it_what_the_device_takes(tmp_path, monkeypatch):
    """Which is waited for where the loss is read."""
    take = TorchLoop.take_losses

    def slowly(loop):
        time.sleep(0.3)
        return take(loop)

    monkeypatch.setattr(TorchLoop, "take_losses", slowly)
    do(points(steps=6, log_every=3), tmp_path)
    lines = [line for line in read_log(tmp_path / "points") if "loss" in line]
    assert all(line["points_per_second"] < 12 / 0.3 for line in lines)
    assert lines[0]["seconds"] > 0.3 and lines[1]["seconds"] > 0.6


def test_the_speed_is_that_of_training(tmp_path, monkeypatch):
    def slowly(self, model, part, parts):
        time.sleep(0.5)
        return {"score": (1.0, 1.0)}

    monkeypatch.setattr(Score, "run", slowly)
    run = points(steps=9, log_every=3, evaluate_every=2)  # evaluations between the lines of the log
    do(run, tmp_path)
    speeds = [line["points_per_second"] for line in read_log(tmp_path / "points") if "loss" in line]
    assert len(speeds) == 3 and min(speeds[1:]) > 12 / 0.4  # 12 points a line; with the pauses at most 12 / 0.5
