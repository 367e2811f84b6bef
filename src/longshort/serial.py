"""Nested frozen dataclasses as JSON, and back, by registered names: how runs and models' configs are written down.

A file names a class by the name that it was registered under. Nothing else can be named, and nothing is imported
because a file says so: whoever reads a file imports the classes first.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

C = TypeVar("C", bound=type)
T = TypeVar("T")
REGISTRY: dict[str, type] = {}

# Before names were registered, a class was written as MODULE:NAME. These modules are gone; records of them are read.
FORMER_MODULES = {
    "longshort.train.run": ("Run",),
    "longshort.train.optimizer": ("AdamW", "Muon"),
    "longshort.train.schedule": ("Schedule",),
    "longshort.nn.spec": ("LongShort", "Full"),
    "longshort.baselines.bigbird": ("BigBird",),
    "longshort.baselines.linear": ("LinearTransformer",),
    "longshort.baselines.linformer": ("Linformer",),
    "longshort.baselines.linformer_window": ("LinformerWindow",),
    "longshort.baselines.longformer": ("Longformer",),
    "longshort.baselines.nystromformer": ("Nystromformer",),
    "longshort.baselines.performer": ("Performer",),
    "longshort.baselines.reformer": ("Reformer",),
    "longshort.baselines.sinkhorn": ("Sinkhorn",),
    "longshort.models.charlm": ("CharLMConfig",),
    "longshort.models.sequence": ("SequenceConfig", "PairConfig", "MaskedConfig"),
    "longshort.models.vil": ("ViLConfig", "ViLStage"),
    "longshort.models.cvt": ("CvTConfig", "CvTStage"),
    "longshort.models.encoder": ("MaskedEncoderConfig", "TextClassifierConfig"),
    "longshort.tasks.language": ("LanguageModelling",),
    "longshort.tasks.bits": ("Windows", "Reading"),
    "longshort.tasks.classify": ("Classification",),
    "longshort.tasks.pairs": ("PairClassification",),
    "longshort.tasks.masked": ("MaskedModelling",),
    "longshort.tasks.text": ("TextClassification", "MaskedText"),
    "longshort.tasks.images": ("ImageClassification",),
    "longshort.tasks.augment": ("Augment",),
    "longshort.data.source": ("CorpusSource", "FileSource"),
    "longshort.data.tokenised": ("Tokenised", "Documents"),
    "longshort.data.imdb": ("Imdb",),
    "longshort.data.aan": ("Aan",),
    "longshort.data.cifar10": ("Cifar10",),
    "longshort.data.listops": ("ListOps",),
    "longshort.data.pathfinder": ("Pathfinder",),
    "longshort.data.generated": ("Counts",),
    "longshort.data.images": ("ImageFolder",),
}
FORMER_NAMES = {f"{module}:{name}": name for module, names in FORMER_MODULES.items() for name in names}
FORMER_FIELDS = {  # of a class, what a field was called before
    ("Classification", "judged"): "evaluation_batch",
    ("PairClassification", "judged"): "evaluation_batch",
    ("TextClassification", "judged"): "evaluation_batch",
    ("MaskedModelling", "judged"): "evaluation_batch",
    ("MaskedModelling", "judge_most"): "evaluation_count",
    ("MaskedText", "judged"): "evaluation_batch",
    ("MaskedText", "judge_most"): "evaluation_count",
    ("ImageClassification", "judged"): "evaluation_batch",
    ("ImageClassification", "judged_side"): "evaluation_side",
}
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)


class UnregisteredError(ValueError):
    """A file names a class that is not registered."""


def registered(name: str) -> Callable[[C], C]:
    """Class decorator: dataclasses of this class are written, and read back, under `name`."""

    def register(cls: C) -> C:
        if not _same(REGISTRY.get(name, cls), cls):
            raise ValueError(f"two classes are registered as {name!r}: {REGISTRY[name]} and {cls}")
        REGISTRY[name] = cls
        return cls

    return register


def _same(one: type, other: type) -> bool:
    """Whether they are one class, which a notebook may have defined twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def name_of(cls: type) -> str:
    """The registered name; of a class that has none, such as a user's own task, its module and its own name."""
    registered_name = next((name for name, each in REGISTRY.items() if _same(each, cls)), None)
    return registered_name or f"{cls.__module__}:{cls.__qualname__}"


def as_json(value: Any) -> Any:
    """Nested dataclasses as dictionaries that name their type."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": name_of(type(value)), **fields_as_json(value)}
    if isinstance(value, Path):
        return {"type": "path", "path": str(value)}
    if isinstance(value, tuple | list):
        return [as_json(v) for v in value]
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(f"only dataclasses, paths, tuples, numbers and strings are written, got {value!r}")
    return value


def fields_as_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, without its own type."""
    return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if f.init}


def with_current_names(value: Any) -> Any:
    """JSON of an earlier version, with the names that classes and fields have now."""
    if isinstance(value, list):
        return [with_current_names(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    kind = FORMER_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    renamed = {FORMER_FIELDS.get((str(kind), name), name): with_current_names(v) for name, v in value.items()}
    return {**renamed, "type": kind} if "type" in value else renamed


def from_json(value: Any, expected: type[T] | None = None) -> Any:
    """The dataclasses again. Types are checked, and `expected` is the type of the outermost."""
    result = _from_json(with_current_names(value), expected)
    if expected is not None and not isinstance(result, expected):
        raise ValueError(f"expected {expected.__name__}, got {_short(result)}")
    return result


def _from_json(value: Any, expected: type | None = None) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(v) for v in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("type", None if expected is None else name_of(expected))
    if kind == "path":
        if not isinstance(value.get("path"), str):
            raise ValueError(f"path must be a string, got {_short(value.get('path'))}")
        return Path(value["path"])
    cls = _registered_as(kind) if isinstance(kind, str) else None
    if cls is None:
        raise UnregisteredError(f"type {_short(kind)} is not registered here: {_advice(kind)}")
    _check_names(cls, value.keys() - {"type"})
    arguments = {name: _from_json(v) for name, v in value.items() if name != "type"}
    _check_types(cls, arguments)
    return cls(**arguments)


def _registered_as(kind: str) -> type | None:
    """Of a class that was registered after the file was written, the file has the module and the name."""
    own = (cls for cls in REGISTRY.values() if f"{cls.__module__}:{cls.__qualname__}" == kind)
    return REGISTRY.get(kind) or (None if kind.startswith("longshort.") else next(own, None))


def _advice(kind: Any) -> str:
    name = str(kind)
    if name.startswith("jax."):
        return "it is of a training in JAX, which evaluates its best checkpoint at its end, in evaluated.json"
    if name in FORMER_NAMES.values():
        module = next(module for module, names in FORMER_MODULES.items() if name in names)
        ours = "longshort.baselines" if module.startswith("longshort.baselines") else "longshort.lab.trained"
        return f"import {ours} first"
    return "register a class of your own with longshort.serial.registered, and import its module first"


def _check_names(cls: type, names: set[str]) -> None:
    """Raises a ValueError where they are not those of the fields."""
    fields_by_name = {f.name: f for f in fields(cls) if f.init}
    if unknown := sorted(names - fields_by_name.keys()):
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}: was this written by a newer version?")
    needed = (n for n, f in fields_by_name.items() if f.default is f.default_factory is dataclasses.MISSING)
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"{cls.__name__} lacks {', '.join(missing)}")


def _check_types(cls: type, arguments: dict[str, Any]) -> None:
    """Raises a ValueError where they do not fit the class. Strings become paths where a path is wanted."""
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise ValueError(f"the types of {cls.__name__}'s fields must be there at run time: {error}") from None
    for name, value in arguments.items():
        if isinstance(value, str) and not fits(value, hints[name]) and fits(Path(value), hints[name]):
            arguments[name] = Path(value)  # a path may be given as a string
        elif not fits(value, hints[name]):
            raise ValueError(f"{name} of {cls.__name__} cannot be {_short(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value that was read is of a type. Of a protocol, whether it has the attributes."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(fits(v, arguments[0]) for v in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is dict:
        key, item = arguments
        return isinstance(value, dict) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if hint is float:
        return isinstance(value, float) or (fits(value, int) and abs(value) <= sys.float_info.max)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if getattr(origin or hint, "_is_protocol", False):
        return is_dataclass(value) and all(hasattr(type(value), name) for name in _members(origin or hint))
    return isinstance(value, origin or hint)


def _members(protocol: type) -> set[str]:
    """The names that a protocol asks for, its fields left out: a dataclass has these on its instances alone."""
    protocols = [each for each in protocol.__mro__ if getattr(each, "_is_protocol", False)]
    return {name for each in protocols for name in vars(each) if not name.startswith("_")}


def _short(value: Any) -> str:
    text = type(value).__name__ if is_dataclass(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turns what can be wrong with the content of a file into one sentence that names it."""
    try:
        yield
    except UNREADABLE as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        if isinstance(error, UnregisteredError):
            raise UnregisteredError(f"{path} cannot be read here: {reason}") from None
        raise ValueError(f"{path} is no {what}: {reason}") from None


def read_json(path: Path, what: str) -> Any:
    with reading(path, what):
        return json.loads(path.read_bytes())


def read_object(path: Path, what: str, **fields: Any) -> dict[str, Any]:
    """A JSON object from a file, which has these fields of these types."""
    facts = read_json(path, what)
    with reading(path, what):
        if not isinstance(facts, dict):
            raise ValueError(f"expected an object, got {_short(facts)}")
        if missing := [name for name in fields if name not in facts]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        if wrong := [name for name, kind in fields.items() if not fits(facts[name], kind)]:
            raise ValueError(f"{wrong[0]} cannot be {_short(facts[wrong[0]])}")
        return facts


def read(path: Path, expected: type[T], what: str) -> T:
    """A dataclass from a file. what: how an error names the kind of file."""
    with reading(path, what):
        value: T = from_json(json.loads(path.read_bytes()), expected)
        return value
