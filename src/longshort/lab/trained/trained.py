"""Trained.open(name): the one place that knows what kind of thing a name is.

A name is the folder of a run, of a checkpoint or of a saved model (ours or one of transformers), a .pth file of the
released ViL-LS, or a name on the Hugging Face hub.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from torch import nn

import longshort.baselines
import longshort.lab.tasks  # noqa: F401
from longshort.checksums import RECORD, needs_checksums
from longshort.lab.data.images import Middle
from longshort.lab.data.source import with_data_at
from longshort.lab.runs.checkpoints import WEIGHTS, Which, read_facts
from longshort.lab.runs.errors import one_line
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.run import Run
from longshort.lab.trained.encoder import MaskedEncoderConfig, TextClassifierConfig
from longshort.lab.trained.weights import Buildable, build, check_if_checkpoint, load_weights
from longshort.models.charlm import CharLMConfig
from longshort.models.cvt import CvTConfig
from longshort.models.hub import check_there
from longshort.models.sequence import MaskedConfig, PairConfig, SequenceConfig
from longshort.models.vil import ViL, ViLConfig
from longshort.serial import UnregisteredError, from_json, read_object, reading

logger = logging.getLogger(__name__)

Kind = Literal["language", "sequences", "pictures", "encoder", "masked", "other"]
RELEASED = (".pth", ".pt")
CONFIG, A_CONFIG = "config.json", "config of a model"
FILES = ["*.json", "*.txt", "*.safetensors"]  # of a model on the hub
KINDS: dict[type, Kind] = {
    CharLMConfig: "language",
    SequenceConfig: "sequences",
    PairConfig: "sequences",
    MaskedConfig: "masked",
    ViLConfig: "pictures",
    CvTConfig: "pictures",
    MaskedEncoderConfig: "masked",
    TextClassifierConfig: "encoder",
}
IN_WORDS: dict[Kind, str] = {
    "language": "a language model over characters",
    "sequences": "a classifier of sequences",
    "pictures": "a vision model",
    "encoder": "an encoder of transformers",
    "masked": "a model that restores hidden tokens",
    "other": "a model of your own",
}


@dataclass(frozen=True)
class Trained:
    """A model that was trained, and what is known of it.

    path: the folder or the released file with its weights; of a model on the hub, the folder with its config.
    config: of our own models. run: that made it; None where no run is recorded, or where its task is of a class that is
    not registered here. hub: whether the name is one on the Hugging Face hub.
    """

    name: str
    kind: Kind
    path: Path
    config: Any = None
    run: Run | None = None
    hub: bool = False

    @classmethod
    def open(cls, name: str, which: Which = "best") -> Trained:
        """Reads what is recorded; the weights are read by `model`."""
        if Path(name).suffix in RELEASED and not Path(name).is_dir():
            if not Path(name).is_file():
                raise FileNotFoundError(f"{name} is not there")
            return cls(name, "pictures", Path(name))
        where = locate(name, which)
        path = Path(where)
        if not path.is_dir():
            if "/" not in where:
                raise FileNotFoundError(
                    f"{name} is not there: give the folder of a run or of a model, or a name on the hub"
                )
            path = downloaded(where, [CONFIG])
            if not {"type", "model_type"} & read_object(path / CONFIG, A_CONFIG).keys():
                path = downloaded(where, FILES)  # the shapes of the weights tell the type
            config = config_of(path)
            return cls(where, _kind(config), path, config, hub=True)
        run = run_of(path)
        config = config_of(path) if run is None else run.model
        return cls(where, _kind(config), path, config, run)

    @cached_property
    def folder(self) -> Path:
        """With the weights, which are downloaded now if they are on the hub."""
        return downloaded(self.name, FILES, revision=self.path.name) if self.hub else self.path

    def model(self, device: torch.device | str = "cpu") -> nn.Module:
        """With its weights, in eval mode. What is recorded in a checkpoint is compared with its checksums."""
        try:
            model = self._model()
        except ValueError as error:
            if type(error) is not ValueError or self.name in str(error):
                raise
            raise ValueError(f"{self.name} cannot be opened: {error}") from error
        return model.to(device).eval()

    def _model(self) -> nn.Module:
        if self.path.is_file():
            return ViL.from_released(self.path)
        folder = self.folder
        if self.config is None:
            return self._transformers_model(folder)
        model = build(self.config, None if self.run is None else folder)
        load_weights(folder, model)
        return model

    def _transformers_model(self, folder: Path) -> nn.Module:
        from longshort.hf import hf, loading, quiet

        check_if_checkpoint(folder)
        with quiet(), loading(self.name):
            model: Any = hf.AutoModel.from_pretrained(folder).float()
        if not model.config.model_type.startswith("longshort-"):
            raise ValueError(
                f"{self.name} is a model of kind {model.config.model_type}, without long-short attention: convert it"
            )
        encoder: nn.Module = model
        return encoder

    def tokenizer(self) -> Any:
        """Of an encoder of transformers."""
        from longshort.hf import hf, loading, quiet

        with quiet(), loading(self.name):
            return hf.AutoTokenizer.from_pretrained(self.folder)

    @property
    def vision(self) -> bool:
        """Whether it is a vision model."""
        return self.kind == "pictures"

    def expect(self, *kinds: Kind) -> Trained:
        """Itself, if it is of one of these kinds."""
        if self.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(IN_WORDS[kind] for kind in kinds))
            raise ValueError(f"{self.name} is {IN_WORDS[self.kind]}, and {wanted} is needed")
        return self

    def task(self, data: Path | None = None) -> Any:
        """The task of the run, with its data at `data` if given. Warns if the data has changed."""
        if self.run is None:
            if (folder := RunFolder.of_checkpoint(self.path)) is not None:
                _ = folder.run  # says which class is not registered here
            raise ValueError(
                f"{self.name} does not say what it was trained on: give the folder of the run, or of its checkpoint"
            )
        task = self.run.task if data is None else with_data_at(data, self.run.task)
        with self.named_if_missing(data):
            fingerprint = task.fingerprint()
        if needs_checksums(self.path):
            recorded = read_facts(self.path).get("data")
            if recorded not in (None, fingerprint):
                logger.warning("the data of %s has changed since its training, which may have seen it", self.name)
        return task

    @contextmanager
    def named_if_missing(self, data: object) -> Iterator[None]:
        """Adds to a reader's words whose data it is, unless the user named it."""
        try:
            yield
        except FileNotFoundError as error:
            where = "" if data else f" (what {self.name} was trained on; if it moved, evaluate with --data)"
            raise FileNotFoundError(f"{error}{where}") from None

    def view(self, model: nn.Module) -> Any:
        """How pictures are cropped for a vision model: as in its training; without a run as in the paper, at 224 the
        middle seven eighths, at larger sizes the whole square."""
        if hasattr(getattr(self.run, "task", None), "view"):
            return self.run.task.view  # type: ignore[union-attr]
        side = getattr(model.config, "size", (224,))[0]
        return Middle(side, 0.875 if side <= 224 else 1.0)


def downloaded(name: str, files: list[str], revision: str | None = None) -> Path:
    """A folder with these files of a model on the hub. Its name is the revision."""
    try:
        return Path(snapshot_download(name, allow_patterns=files, revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{name} is no folder, and cannot be had from the hub: {one_line(error)}") from error


def locate(name: str, which: Which = "best") -> str:
    """Of a run's folder, that of its best or last checkpoint; any other name as it is. Refuses folders without a model,
    and what cannot be a name on the hub."""
    folder = Path(name)
    checkpoint = RunFolder(folder).checkpoints.chosen(which)
    if checkpoint is not None:
        return str(checkpoint)
    if folder.is_dir() and not (folder / CONFIG).exists():
        runs = [str(path.parent) for path in sorted(folder.glob(f"*/{RECORD}"))]
        below = f"; below it there are {', '.join(runs)}" if runs else ""
        raise FileNotFoundError(f"{name} holds neither a run with checkpoints nor a model{below}")
    check_there(name)
    return name


def run_of(path: Path) -> Run | None:
    """The run that wrote this checkpoint. None for other folders, for runs with unregistered classes, and for those of
    JAX."""
    folder = RunFolder.of_checkpoint(path)
    if folder is None:
        return None
    try:
        return folder.run if isinstance(folder.run.model, Buildable) else None
    except UnregisteredError:
        return None


def config_of(folder: Path) -> Any:
    """Of one of our models; None of one of transformers."""
    facts = read_object(folder / CONFIG, A_CONFIG)
    with reading(folder / CONFIG, A_CONFIG):
        if "model_type" in facts:
            return None
        return from_json(facts, None if "type" in facts else _guessed(facts, folder))


def _guessed(facts: dict[str, Any], folder: Path) -> type:
    """Of a config of an earlier version, which does not name its type."""
    if "stages" in facts:
        kernels = any("kernel" in stage for stage in facts["stages"] if isinstance(stage, dict))
        return CvTConfig if kernels else ViLConfig
    if "attention" not in facts:
        return CharLMConfig
    shapes = _shapes(folder / WEIGHTS)
    if "tokens.weight" in shapes:
        return MaskedConfig
    return PairConfig if shapes.get("head.0.weight", [0, 0])[1] == 4 * facts["width"] else SequenceConfig


def _shapes(path: Path) -> dict[str, list[int]]:
    """Of the weights in a file; none if it cannot be read, which raises an error only when they are loaded."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}


def _kind(config: Any) -> Kind:
    return "encoder" if config is None else KINDS.get(type(config), "other")
