"""What is written comes back the same; only registered classes are made, and only from fields of the right types."""

import json
import re
import sys
import typing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from training import Points, language, points

from longshort import serial
from longshort.lab.data import Imdb
from longshort.lab.data.source import CorpusSource, FileSource
from longshort.lab.recipes import RECIPES
from longshort.lab.train import AdamW, Run
from longshort.models.charlm import CharLMConfig
from longshort.models.sequence import SequenceConfig
from longshort.nn.spec import LongShort
from longshort.serial import FORMER_NAMES, REGISTRY, UnregisteredError, as_json, from_json, read, read_json, registered

ARGUMENTS = {"charlm.text": dict(path=Path("notes.txt"))}
ARGUMENTS |= {name: dict(data=Path("imagenet")) for name in RECIPES if name.startswith("imagenet.")}
ARGUMENTS["imagenet.pictures"]["classes"] = 3
ARGUMENTS |= {name: dict(data=Path("texts")) for name in ("roberta.base", "roberta.large")}


def again(value):
    return from_json(json.loads(json.dumps(as_json(value))))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_comes_back(name):
    run = RECIPES[name](**ARGUMENTS.get(name, {}))
    assert again(run) == run


def test_values_come_back_with_their_types(tmp_path):
    run = language(
        tmp_path, optimizer=AdamW(betas=(0.8, 0.9)), clip=None, starts_from=language(tmp_path, name="before")
    )
    back = again(run)
    assert back == run and back.chain == run.chain
    assert isinstance(back.task.source.path, Path) and isinstance(back.optimizer.betas, tuple)
    assert typing.get_type_hints(Run).keys() - {"chain"} == as_json(run).keys() - {"type"}


def test_every_former_name_is_of_a_registered_class():
    assert {type(name) for name in FORMER_NAMES} == {str} and FORMER_NAMES["longshort.train.run:Run"] == "Run"
    for former, name in FORMER_NAMES.items():
        assert former.endswith(f":{name}") and REGISTRY[name].__name__ == name


@pytest.mark.parametrize(
    "kind",
    [
        "os:environ",
        "os:system",
        "subprocess:Popen",
        "pathlib:Path",
        "longshort.__main__:X",
        "longshort.train.state:StateDictOptions",
        "longshort.replay:TreeSpec",
        "longshort.lab.runs.run:Run",
        "longshort.serial:as_json",
        "longshort.nowhere:Run",
        "training:Points",
        "",
        5,
        [],
        None,
    ],
)
def test_only_registered_classes_are_made_and_nothing_is_imported(kind):
    before = set(sys.modules)
    with pytest.raises(UnregisteredError) as error:
        from_json({"type": kind})
    with pytest.raises(UnregisteredError):
        from_json({"type": "AdamW", "betas": [{"type": kind}, 0.9]})
    assert repr(kind) in str(error.value) and set(sys.modules) == before


def test_a_class_of_ones_own_is_read_once_it_is_registered(monkeypatch):
    monkeypatch.setattr(serial, "REGISTRY", dict(REGISTRY))

    @dataclass(frozen=True)
    class Own:
        size: int = 3

    written = as_json(Own(4))
    with pytest.raises(UnregisteredError):
        from_json(written)
    registered("Own")(Own)
    assert again(Own(4)) == Own(4) and as_json(Own(4)) == {"type": "Own", "size": 4}
    with pytest.raises(ValueError, match="Own"):
        registered("Own")(AdamW)


def test_a_class_that_was_registered_after_it_was_written_is_read(monkeypatch):
    monkeypatch.setattr(serial, "REGISTRY", dict(REGISTRY))

    @dataclass(frozen=True)
    class Later:
        size: int = 3

    written = as_json(Later(4))
    registered("Later")(Later)
    assert from_json(written) == Later(4) and as_json(Later(4))["type"] == "Later"


def test_a_class_may_be_defined_again(monkeypatch):
    """As a notebook does, whose cell is run twice."""
    monkeypatch.setattr(serial, "REGISTRY", dict(REGISTRY))

    def define():
        @registered("Cell")
        @dataclass(frozen=True)
        class Cell:
            size: int = 3

        return Cell

    first, second = define(), define()
    assert type(again(second(4))) is second and first is not second


def test_types_that_are_not_there_at_run_time_are_named(monkeypatch):
    monkeypatch.setattr(serial, "REGISTRY", dict(REGISTRY))

    @registered("Typed")
    @dataclass(frozen=True)
    class Typed:
        size: "Nowhere" = 3  # noqa: F821

    with pytest.raises(ValueError, match=r"Typed.*Nowhere"):
        again(Typed())


@pytest.mark.parametrize(
    "wrong, named",
    [
        (dict(taste=1, colour=2), "colour, taste"),
        (dict(steps="many"), "steps.*'many'"),
        (dict(steps=2.5), "steps.*2.5"),
        (dict(steps=True), "steps.*True"),
        (dict(name=5), "name.*5"),
        (dict(model=None), "model.*NoneType"),
        (dict(task=None), "task.*NoneType"),
        (dict(schedule=None), "schedule.*None"),
        (dict(optimizer={"type": "Schedule"}), "optimizer.*Schedule"),
        (dict(optimizer={"type": "AdamW", "lr": "x"}), "lr.*'x'"),
        (dict(optimizer={"type": "AdamW", "betas": [0.9]}), "betas.*0.9"),
        (dict(optimizer={"type": "AdamW", "lr": -1.0}), "lr.*-1"),
        (dict(starts_from="x"), "starts_from.*'x'"),
        (dict(precision="fp16"), "precision.*'fp16'"),
    ],
)
def test_wrong_fields_are_named(tmp_path, wrong, named):
    written = {**as_json(language(tmp_path)), **wrong}
    with pytest.raises(ValueError, match=named):
        from_json(written, Run)


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match="name, model, task, steps"):
        from_json({"type": "Run"}, Run)
    with pytest.raises(ValueError, match="attention, classes"):
        from_json({}, SequenceConfig)


@pytest.mark.parametrize("other", [{"type": "AdamW"}, [], 5, None, "Run"])
def test_another_thing_in_its_place_is_refused(other):
    with pytest.raises(ValueError, match="Run"):
        from_json(other, Run)


def test_a_path_is_a_string():
    with pytest.raises(ValueError, match=r"path.*5"):
        from_json({"type": "path", "path": 5})
    with pytest.raises(ValueError, match=r"path.*None"):
        from_json({"type": "path"})


def test_a_path_that_was_given_as_a_string_comes_back_as_a_path():
    assert again(FileSource("notes.txt")) == FileSource(Path("notes.txt"))
    assert again(Imdb("reviews")) == Imdb(Path("reviews")) and again(Imdb()) == Imdb()
    assert again(CorpusSource("enwik8")).name == "enwik8"


@pytest.mark.parametrize(
    "kind, advice", [("Linformer", "longshort.baselines"), ("Run", "longshort.lab.trained"), ("jax.Full", "JAX")]
)
def test_what_is_ours_and_not_imported_is_said_to_be(kind, advice, monkeypatch):
    monkeypatch.setattr(serial, "REGISTRY", {})
    with pytest.raises(UnregisteredError, match=advice):
        from_json({"type": kind})


def test_configs_are_bounded():
    with pytest.raises(ValueError, match=r"layers.*100000000"):
        from_json({**serial.fields_as_json(CharLMConfig()), "layers": 100_000_000}, CharLMConfig)
    config = serial.fields_as_json(SequenceConfig(LongShort(2, 2), classes=2))
    with pytest.raises(ValueError, match=r"layers.*100000000"):
        from_json({**config, "layers": 100_000_000}, SequenceConfig)


CONTENTS = {
    "nothing": b"",
    "half": b'{"type": "Run", "na',
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "not UTF-8": b'{"type": "\xff\xfe"}',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "NUL": b"\0",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_files_that_cannot_be_read_are_named_in_one_line(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read(path, Run, "record of a run")
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_json_alone_is_read_the_same_way(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text('{"a": [1, 2]}')
    assert read_json(path, "table") == {"a": [1, 2]}
    path.write_text("{")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_json(path, "table")


@pytest.mark.parametrize("value", [torch.float32, {"a": 1}, {1}, b"bytes", Points, torch.zeros(2)])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(ValueError, match="written"):
        as_json([AdamW(), value])


def test_a_task_without_a_registered_name_is_written_with_its_module():
    assert as_json(points())["task"]["type"] == "training:Points"
