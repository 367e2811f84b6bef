"""A run is plain data that is checked when it is made, and goes on as it began."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from training import language, points

from longshort.lab.runs.run import differences
from longshort.lab.train import AdamW, TrainingError, train
from longshort.serial import as_json


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(steps=0), "steps must be at least 1, got 0"),
        (dict(accumulate=0), "accumulate must be at least 1, got 0"),
        (dict(save_every=-1), "save_every must be at least 1, got -1"),
        (dict(seed=-1), "seed must be from 0 to 2,147,483,647, got -1"),
        (dict(precision="fp16"), "precision must be 'auto', 'fp32' or 'bf16', got 'fp16'"),
        (dict(clip=0.0), "clip must be above 0, got 0.0"),
        (dict(clip=float("nan")), "clip must be above 0, got nan"),
        (dict(name="a/b"), "name must be usable as the name of a folder, got 'a/b'"),
        (dict(name=".."), "name must be usable as the name of a folder, got '..'"),
        (dict(name=""), "name must be usable as the name of a folder, got ''"),
        (dict(task=AdamW()), "task must be a task, with a fingerprint of its data, got AdamW"),
        (dict(model="x"), "model must be a dataclass that a model is made from, got str"),
        (dict(starts_from=points()), "both named 'points': each needs its own folder"),
    ],
)
def test_runs_that_are_refused(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        replace(points(), **changes)


def test_a_chain_is_done_from_its_beginning():
    first = points(name="first")
    second = points(name="second", starts_from=first)
    third = points(name="third", starts_from=second)
    assert third.chain == (first, second, third) and first.chain == (first,)
    with pytest.raises(ValueError, match="both named 'first'"):
        replace(third, name="first")


def test_a_run_goes_on_as_it_began(tmp_path):
    run = language(tmp_path)
    console = Console(file=io.StringIO())
    train(run, tmp_path / "out", cpu=True, console=console)
    more = replace(run, steps=9, log_every=1)
    other = replace(more, optimizer=AdamW(lr=0.5), model=replace(run.model, dropout=0.0))
    with pytest.raises(TrainingError, match=r"other settings: model.dropout was 0.1, now 0.0; optimizer.lr was 0.01"):
        train(other, tmp_path / "out", resume=True, cpu=True, console=console)
    assert train(more, tmp_path / "out", resume=True, cpu=True, console=console).step == 9


def test_a_text_may_move():
    old, new = (as_json(Path(name)) for name in ("here", "there"))
    assert differences({"a": old, "b": 1}, {"a": new, "b": 1}) == []
    assert differences({"a": None}, {"a": new}) == differences({"a": old}, {"a": None}) == []
    assert differences({"a": 1}, {"a": new})
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 2}, "c": 3}, but=("c",)) == ["a.b was 1, now 2"]
