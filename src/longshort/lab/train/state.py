"""All that a run is made of at a step, gathered for a checkpoint and put back: bit for bit, on the same machine."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from longshort.lab.runs.checkpoints import WEIGHTS, Checkpoints, check, corrupt, write
from longshort.lab.runs.errors import CheckpointError, one_line
from longshort.lab.train.average import Average
from longshort.lab.train.processes import Processes
from longshort.lab.trained.weights import read_weights, shared_names
from longshort.serial import UNREADABLE

OPTIMIZER = "optimizer.pt"
TRAINED = "trained.safetensors"  # the weights of the last step, where WEIGHTS are a moving average of them


def save_state(
    to: Checkpoints,
    step: int,
    facts: dict[str, Any],
    beside: Mapping[str, bytes],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    own: dict[str, Any],
    processes: Processes,
    average: Average | None = None,
) -> None:
    """Write a checkpoint. facts: plain ones; beside: files that lie beside the weights, by name; own: what this
    process has for itself, such as caches.

    The weights, or where there is one their average, lie as `save_pretrained` leaves them, so that a checkpoint is a
    model.
    """
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    again = shared_names(processes.bare(model))

    def weights_now() -> bytes:
        """All processes take part; the first has the result."""
        state: dict[str, Any] = get_model_state_dict(model, options=full)
        once = {name: t.contiguous() for name, t in state.items() if name not in again}
        return save(once, metadata={"format": "pt"})

    files = {WEIGHTS if average is None else TRAINED: weights_now()}
    if average is not None:
        with average.used(model):
            files[WEIGHTS] = weights_now()
    updates = get_optimizer_state_dict(model, optimizer, options=full)
    folder = to.unfinished(step)

    def write_own() -> None:
        state = {**own, "random": random_states()}
        write(folder / f"process_{processes.index}.pt", lambda f: torch.save(state, f))

    def write_shared() -> None:
        for name, content in {**files, **beside}.items():
            write(folder / name, content)
        write(folder / OPTIMIZER, lambda f: torch.save(updates, f))

    def together(*acts: Callable[[], Any]) -> None:
        """All processes, or none, go on after this."""
        failure = None
        try:
            with to.guarded(step):
                for act in acts:
                    act()
        except CheckpointError as error:
            failure = error
        if processes.any(failure is not None):
            if processes.first:
                to.abandon(step)  # not sooner: another process may be writing into it
            raise failure or CheckpointError(
                f"another process could not write the checkpoint of step {step} in {folder}"
            )

    first = processes.first
    together(*([lambda: to.begin(step)] if first else []))
    together(write_own, *([write_shared] if first else []))
    noted = {**facts, "processes": processes.count}
    together(*([lambda: to.finish(step, noted)] if first else []))


def load_state(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    expected: dict[str, Any],
    processes: Processes,
    average: Average | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put weights, optimizer and random states back; what a checkpoint says about itself, and this process's own, which
    has the names and types of `expected`."""
    weights_files = (WEIGHTS,) if average is None else (WEIGHTS, TRAINED)
    own_file = f"process_{processes.index}.pt"
    facts = check(path, (*weights_files, OPTIMIZER))
    if facts.get("processes") != processes.count:
        raise CheckpointError(
            f"checkpoint {path} is of a run with {facts.get('processes')} processes, and there are {processes.count}: "
            "each has its own part of the text"
        )
    if own_file not in facts["files"]:
        raise corrupt(path, f"it has no {own_file}")
    full, bare = StateDictOptions(full_state_dict=True), processes.bare(model)
    try:
        for name in weights_files:
            weights = read_weights(path / name, bare)
            if missing := bare.state_dict().keys() - weights.keys():  # which torch would leave as they are
                raise ValueError(f"{name} lacks {', '.join(sorted(missing))}")
            set_model_state_dict(model, weights, options=full)
            if average is not None and name == WEIGHTS:
                average.take(model)
        updates = torch.load(path / OPTIMIZER, weights_only=True)
        set_optimizer_state_dict(model, optimizer, updates, options=full)
        own = torch.load(path / own_file, weights_only=True, map_location=processes.device)
        set_random_states(own.pop("random"))
        if wrong := [name for name, value in expected.items() if not isinstance(own.get(name), type(value))]:
            raise ValueError(f"{wrong[0]} in {own_file} cannot be {own.get(wrong[0])!r}")
    except (*UNREADABLE, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} does not fit this run: {one_line(error)}") from error
    return facts, own


def random_states() -> dict[str, Any]:
    _, keys, place, has_gauss, gauss = np.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), place, has_gauss, gauss],
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"].cpu())
    random.setstate(states["python"])
    keys, *rest = states["numpy"]
    np.random.set_state(("MT19937", keys.cpu().numpy().astype(np.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
