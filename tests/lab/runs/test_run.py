"""A run is plain data: written down and read back it is the same, and what is not ours is not made."""

import io
import json
import re
import typing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from training import Points, language, points

from longshort.lab.recipes import RECIPES
from longshort.lab.train import AdamW, Run, TrainingError, as_json, from_json, train
from longshort.lab.runs.run import differences

ARGUMENTS = {"charlm.text": dict(path=Path("notes.txt"))}
ARGUMENTS |= {name: dict(data=Path("imagenet")) for name in RECIPES if name.startswith("imagenet.")}
ARGUMENTS["imagenet.pictures"]["classes"] = 3
ARGUMENTS |= {name: dict(data=Path("texts")) for name in ("roberta.base", "roberta.large")}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_back_from_json(name):
    run = RECIPES[name](**ARGUMENTS.get(name, {}))
    assert from_json(json.loads(json.dumps(as_json(run)))) == run


def test_values_come_back_with_their_types(tmp_path):
    run = language(
        tmp_path, optimizer=AdamW(betas=(0.8, 0.9)), clip=None, starts_from=language(tmp_path, name="before")
    )
    back = from_json(json.loads(json.dumps(as_json(run))))
    assert back == run and back.chain == run.chain
    assert isinstance(back.task.source.path, Path) and isinstance(back.optimizer.betas, tuple)
    assert typing.get_type_hints(Run).keys() - {"chain"} == as_json(run).keys() - {"type"}


@pytest.mark.parametrize(
    "kind",
    [
        "os:environ",
        "pathlib:Path",
        "longshortly:Run",
        "longshort.lab.runs.run:json",
        "longshort.serial:as_json",
        "longshort.lab.runs.run:nothing",
        "longshort.nowhere:Run",
        "longshort.lab.runs.run",
        "training:Points",
        "",
    ],
)
def test_only_our_own_dataclasses_are_made(kind):
    with pytest.raises(
        ValueError, match=rf"only longshort's own dataclasses are read back, and '{re.escape(kind)}' is none"
    ):
        from_json({"type": kind})
    with pytest.raises(ValueError, match="dataclasses"):
        from_json({"type": "longshort.lab.train.optimizer:AdamW", "betas": [{"type": kind}, 0.9]})


def test_a_dictionary_without_a_type_is_refused():
    with pytest.raises(ValueError, match="dataclasses"):
        from_json({"lr": 0.1})


def test_unknown_fields_are_refused_by_name():
    written = as_json(replace(points(), model=None, task=None))
    with pytest.raises(ValueError, match="Run has no field colour, taste: was this written by a newer version"):
        from_json({**written, "taste": 1, "colour": 2})


def test_fields_are_checked_when_they_are_read():
    with pytest.raises(ValueError, match="lr must not be negative, got -1"):
        from_json({"type": "longshort.lab.train.optimizer:AdamW", "lr": -1.0})


@pytest.mark.parametrize("value", [torch.float32, {"a": 1}, {1}, b"bytes", Points, torch.zeros(2)])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(ValueError, match="a run is made of dataclasses, paths, tuples, numbers and strings"):
        as_json(replace(points(), model=value))


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
        (dict(starts_from=points()), "both named 'points': each needs its own folder"),
    ],
)
def test_runs_that_are_refused(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        points(**changes)


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
