"""Nested frozen dataclasses as JSON, and back: how a run and a model's config are written down."""

from __future__ import annotations

import dataclasses
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


def as_json(value: Any) -> Any:
    """Nested dataclasses as dictionaries that name their type."""
    if is_dataclass(value) and not isinstance(value, type):
        named = f"{type(value).__module__}:{type(value).__qualname__}"
        return {"type": named, **fields_as_json(value)}
    if isinstance(value, Path):
        return {"type": "path", "path": str(value)}
    if isinstance(value, tuple | list):
        return [as_json(v) for v in value]
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise ValueError(
            f"a run is made of dataclasses, paths, tuples, numbers and strings; {value!r} is none of these"
        )
    return value


def fields_as_json(value: Any) -> dict[str, Any]:
    """Of a dataclass whose own type is known to whoever reads it; those inside are named."""
    return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if f.init}


def from_json(value: Any) -> Any:
    """The dataclasses again; only our own are made."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "")
    if kind == "path":
        return Path(value["path"])
    module, _, name = kind.partition(":")
    try:
        made = getattr(import_module(module), name, None) if module.split(".")[0] == "longshort" else None
    except ImportError:
        made = None
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
        raise ValueError(f"only longshort's own dataclasses are read back, and {kind!r} is none")
    known = {f.name for f in fields(made)}
    unknown = set(value) - known - {"type"}
    if unknown:
        raise ValueError(f"{name} has no field {', '.join(sorted(unknown))}: was this written by a newer version?")
    return made(**{key: from_json(v) for key, v in value.items() if key != "type"})
