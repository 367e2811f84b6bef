"""Models from the files that hold their weights. Every reader here compares a checkpoint with its checksums first."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from longshort.checksums import needs_checksums
from longshort.lab.runs.checkpoints import WEIGHTS, check
from longshort.lab.runs.errors import CheckpointError, one_line
from longshort.serial import as_json


@runtime_checkable
class Buildable(Protocol):
    """A frozen dataclass that a model is made from."""

    def build(self) -> nn.Module: ...


@runtime_checkable
class Described(Buildable, Protocol):
    """One whose models others can read from the folder of a checkpoint, given more than its own fields."""

    def files(self, model: nn.Module) -> Mapping[str, bytes]:
        """What lies there beside the weights, by name: config.json, and for example a tokenizer's files."""
        ...

    def read(self, folder: Path) -> nn.Module:
        """The model of such a folder: what `build` starts from is not needed again."""
        ...


def check_if_checkpoint(path: Path) -> None:
    """Compares what a model is read from with its checksums: not the state that a training goes on from. Folders other
    than checkpoints have none."""
    if needs_checksums(path):
        check(path, which=lambda name: name == WEIGHTS or name.endswith((".json", ".txt")))


def build(config: Any, checkpoint: Path | None = None) -> nn.Module:
    """The model, for weights that are to come; where there is a checkpoint that can be read as it is, from that."""
    if checkpoint is not None and isinstance(config, Described):
        check_if_checkpoint(checkpoint)
        return config.read(checkpoint)
    if not isinstance(config, Buildable) or inspect.signature(config.build).parameters:
        raise ValueError(f"model cannot be {type(config).__name__}, which is no config of a model")
    try:
        return config.build()
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that are absurd, or do not fit each other
        ours = type(config).__module__.startswith("longshort.")
        if not ours or isinstance(error, torch.OutOfMemoryError) or "memory" in str(error):
            raise
        raise ValueError(f"model {type(config).__name__} cannot be built: {one_line(error)}") from error


def files_beside(config: Any, model: nn.Module) -> Mapping[str, bytes]:
    """What makes a folder of weights a model, by name: what the config says, or the config itself."""
    if isinstance(config, Described):
        return config.files(model)
    return {"config.json": json.dumps(as_json(config), indent=2).encode()}


def shared_names(model: nn.Module) -> dict[str, str]:
    """Of weights that several layers share, the names after the first, each with that one. A file has them once."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(t), name) for name, t in model.state_dict(keep_vars=True).items()}
    return {name: other for name, other in names.items() if name != other}


def read_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Of a file, under all the names that the model has for them."""
    weights: dict[str, Any] = load_file(path)
    shared = shared_names(model).items()
    return {**weights, **{name: weights[other] for name, other in shared if other in weights}}


def load_weights(path: Path, model: nn.Module, *, strict: bool = True) -> None:
    """Of a checkpoint, or of a folder in which a model was saved. Unless strict, those that both have by name, of which
    there must be some."""
    check_if_checkpoint(path)
    try:
        weights = read_weights(path / WEIGHTS, model)
    except SafetensorError as error:
        raise ValueError(f"the weights in {path} cannot be read: {error}") from None
    try:
        unknown = model.load_state_dict(weights, strict=strict).unexpected_keys
    except RuntimeError as error:
        first, *others = str(error).splitlines()[1:] or [str(error)]
        more = f" (and {len(others)} more)" if others else ""
        raise CheckpointError(f"the weights of {path} do not fit this model: {first.strip()}{more}") from error
    if len(unknown) == len(weights):
        raise CheckpointError(f"the weights of {path} do not fit this model: it has none of them")
