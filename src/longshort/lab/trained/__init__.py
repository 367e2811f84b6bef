"""Finding a trained model again, and judging it on a text.

A model is named by the folder of a run, by that of a checkpoint, or as on the Hugging Face hub.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError
from torch import nn

from longshort.lab.data.source import CorpusSource
from longshort.lab.data.splits import Text
from longshort.lab.data.tokenised import Tokenised
from longshort.models.charlm import CharLM
from longshort.lab.tasks import Classification
from longshort.lab.evaluate.bits import Protocol, Reading, Windows, bits, work
from longshort.lab.tasks.language import LanguageModelling
from longshort.lab.tasks.masked import Masking
from longshort.lab.train import Run, read_run
from longshort.lab.runs.checkpoints import META, Checkpoints
from longshort.lab.train.processes import Processes
from longshort.lab.train.state import build, load_weights

logger = logging.getLogger(__name__)

# Sequences at once: enough to fill the device
BATCH = {"paper": {"cuda": 32, "cpu": 1}, "fast": {"cuda": 64, "cpu": 8}}


def find_model(name: str, which: Literal["best", "last"] = "best") -> str:
    """Of a run's folder, that of its best or last checkpoint; any other name as it is."""
    checkpoints = Checkpoints(Path(name) / "checkpoints")
    found = checkpoints.best() if which == "best" else checkpoints.last()
    if found is None and Path(name).is_dir() and not (Path(name) / "config.json").exists():
        runs = [str(path.parent) for path in sorted(Path(name).glob("*/run.json"))]
        below = f"; below it there are {', '.join(runs)}" if runs else ""
        raise FileNotFoundError(f"{name} holds neither a run with checkpoints nor a model{below}")
    return name if found is None else str(found)


def load_model(name: str, device: torch.device | str, which: Literal["best", "last"] = "best") -> CharLM:
    path = find_model(name, which)
    if not Path(path).is_dir() and (path.count("/") != 1 or Path(path).parent.is_dir()):
        raise FileNotFoundError(f"{name} is not there: give the folder of a run or of a model, or a name on the hub")
    if not Path(path).is_dir():
        hf_hub_download(path, "config.json")  # which says what is wrong, where the mixin does not
    if isinstance(task_of(name), Masking):
        raise ValueError(f"{name} restores hidden tokens, and is judged while it trains: dev_loss in its log.jsonl")
    config = Path(path) / "config.json"
    try:
        known = json.loads(config.read_text()) if config.exists() else {}
        if "classes" in known or "model_type" in known:
            kind = f"a model of kind {known['model_type']}" if "model_type" in known else "a classifier"
            raise ValueError(f"{name} is {kind}, or what one starts from, and not a language model over characters")
        with redirect_stdout(io.StringIO()):  # the hub's mixin prints that it loads
            return CharLM.from_pretrained(path).to(device).eval()
    except SafetensorError as error:
        raise ValueError(f"the weights in {path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"config.json in {path} cannot be read: {error}") from None


def load_trained(
    name: str, device: torch.device | str, which: Literal["best", "last"] = "best"
) -> tuple[Run, nn.Module]:
    """Any model that a run made, and the run."""
    run = find_run(name)
    if run is None:
        raise FileNotFoundError(f"{name} holds no run: run.json is not there")
    checkpoint = Path(find_model(name, which))
    model = build(run.model, checkpoint)
    load_weights(checkpoint, model)
    return run, model.to(device).eval()


def find_run(name: str) -> Run | None:
    """The run that a folder, or the checkpoint's run above it, records."""
    for folder in (Path(name), *Path(name).resolve().parents[:2]):
        if (folder / "run.json").exists():
            return read_run(folder / "run.json")
    return None


def task_of(name: str) -> Any:
    """Of the model's run; None without one, or where the task is the user's own, which only their code can read."""
    try:
        run = find_run(name)
    except ValueError:
        return None
    return None if run is None else run.task


def classifies(task: Any) -> TypeGuard[Classification]:
    """Whether labels are what is learned: masked modelling reads the same data, and leaves them alone."""
    return isinstance(task, Classification) and not isinstance(task, Masking)


def moved(source: Any, path: Path) -> Any:
    """The same source, the files of which lie elsewhere now."""
    if isinstance(source, Tokenised):
        return replace(source, source=moved(source.source, path))
    return replace(source, path=path)


def data_of(name: str) -> str | None:
    """The fingerprint of what a model was trained on, where it is known."""
    about = Path(find_model(name)) / META
    data: str | None = json.loads(about.read_text()).get("data") if about.exists() else None
    return data


@contextmanager
def named_if_missing(name: str, given: object) -> Iterator[None]:
    """Adds to a reader's words whose data it is, unless the user named it."""
    try:
        yield
    except FileNotFoundError as error:
        where = "" if given else f" (what {name} was trained on; if it moved, evaluate with --data)"
        raise FileNotFoundError(f"{error}{where}") from None


def warn_if_changed(name: str, data: str) -> None:
    if data_of(name) not in (None, data):
        logger.warning("the data of %s has changed since its training, which may have seen what is judged now", name)


def texts_of(
    name: str, split: Literal["dev", "test", "both"], data: Path | None = None, corpus: str | None = None
) -> dict[str, Text]:
    """The development and test text of the model's own training, or of a corpus. data: where the corpus is now."""
    if corpus is not None:
        source: Any = CorpusSource(corpus, data)
    else:
        run = find_run(name)
        if run is None or not isinstance(run.task, LanguageModelling):
            options = "evaluate: --corpus or --text, analyse: --prompt"
            raise FileNotFoundError(f"{name} does not say what text it was trained on: name one ({options})")
        source = run.task.source
        if data is not None:
            source = replace(source, path=data)
    with named_if_missing(name, corpus or data):
        splits = source.splits()
    if corpus is None:
        warn_if_changed(name, splits.fingerprint())
    return {part: getattr(splits, part) for part in (("dev", "test") if split == "both" else (split,))}


def protocol_of(kind: Literal["paper", "fast"], device: str, batch: int | None, context: int, step: int) -> Protocol:
    batch = BATCH[kind]["cuda" if device == "cuda" else "cpu"] if batch is None else batch
    return Windows(context, step, batch) if kind == "paper" else Reading(context, batch)


def evaluate(
    model: CharLM, text: Text, protocol: Protocol, processes: Processes, tell: Callable[[int], Any] = lambda count: None
) -> tuple[float, int]:
    """Bits per character of all processes together, and of how many characters."""
    with processes.autocast():
        part = bits(model, text, protocol, processes.index, processes.count, block=model.config.memory, tell=tell)
    total, count = processes.total(part)
    return total / count, int(count)


__all__ = [
    "classifies",
    "evaluate",
    "find_model",
    "find_run",
    "load_model",
    "load_trained",
    "moved",
    "named_if_missing",
    "protocol_of",
    "task_of",
    "texts_of",
    "warn_if_changed",
    "work",
]
