"""Pretrained encoders of transformers as a run takes them: converted to long-short attention, or as they are.

Nothing of transformers is imported before a model is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from torch import nn

from longshort.lab.trained.weights import check_if_checkpoint
from longshort.models.hub import check_there
from longshort.nn.spec import Full, LongShort
from longshort.serial import registered

USUAL = LongShort(window=128, rank=64)


@dataclass(frozen=True)
class EncoderConfig:
    """checkpoint: a folder, or a name on the Hugging Face hub: a RoBERTa or BERT, which is converted, or one that was
    converted before, with this attention.

    length: the most tokens of a text. attention: Full() keeps the original's, with its positions repeated. seed: of
    what is new.
    """

    checkpoint: str
    length: int = 4096
    attention: LongShort | Full = USUAL
    seed: int = 0

    head: ClassVar[str] = "Model"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")
        if self.attention.rotary:
            raise ValueError("pretrained encoders have learned positions: rotary must be False")

    @property
    def labels(self) -> int | None:
        """Of the head, where it has a number of them."""
        return None

    def build(self) -> nn.Module:
        from longshort.hf import convert, hf, loading, quiet
        from longshort.hf.conversion import lengthened, load

        check_there(self.checkpoint)
        check_if_checkpoint(Path(self.checkpoint))
        torch.manual_seed(self.seed)
        with quiet():
            with loading(self.checkpoint):
                config = hf.AutoConfig.from_pretrained(self.checkpoint)
            if config.model_type.startswith("longshort-"):
                return self.build_converted(config)
            if isinstance(self.attention, Full):
                original, _ = load(self.checkpoint, self.head, self.labels)
                model: nn.Module = lengthened(original, self.length)
                return model
            return convert(
                self.checkpoint,
                max_length=self.length,
                window=self.attention.window,
                rank=self.attention.rank,
                dual_norm=self.attention.dual_norm,
                head=self.head,
                classes=self.labels,
                seed=self.seed,
            ).model

    def build_converted(self, config: Any) -> nn.Module:
        if LongShort(config.window, config.rank, config.dual_norm) != self.attention:
            asked = "full attention" if isinstance(self.attention, Full) else self.attention
            raise ValueError(
                f"{self.checkpoint} was converted with window {config.window} and rank {config.rank} (--attention "
                f"{config.window},{config.rank}), and {asked} is asked for"
            )
        if config.longest < self.length:
            raise ValueError(
                f"{self.checkpoint} reads {config.longest:,} tokens (--length {config.longest}), and "
                f"{self.length:,} are asked for"
            )
        return self.read(self.checkpoint, **({} if self.labels is None else dict(num_labels=self.labels)))

    def read(self, checkpoint: str | Path, **options: Any) -> nn.Module:
        """The model of a folder with `files` and weights. options: of transformers' from_pretrained."""
        from longshort.hf import hf, loading, quiet

        auto = getattr(hf, f"AutoModel{self.head.removeprefix('Model')}")
        with quiet(), loading(checkpoint):
            model: nn.Module = auto.from_pretrained(checkpoint, dtype=torch.float32, **options)
        return model

    def files(self, model: Any) -> Mapping[str, bytes]:
        """As transformers writes them: a checkpoint is one of its models."""
        from longshort.hf import hf, quiet

        model.config.architectures = [type(model).__name__]
        with quiet():
            tokenizer = hf.AutoTokenizer.from_pretrained(self.checkpoint)
        tokenizer.model_max_length = self.length
        with TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


@registered("MaskedEncoderConfig")
@dataclass(frozen=True)
class MaskedEncoderConfig(EncoderConfig):
    """To be trained to restore tokens."""

    head: ClassVar[str] = "ForMaskedLM"


@registered("TextClassifierConfig")
@dataclass(frozen=True)
class TextClassifierConfig(EncoderConfig):
    """With a new head."""

    classes: int = 2

    head: ClassVar[str] = "ForSequenceClassification"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 1:
            raise ValueError(f"classes must be at least 1, got {self.classes}")

    @property
    def labels(self) -> int | None:
        return self.classes
