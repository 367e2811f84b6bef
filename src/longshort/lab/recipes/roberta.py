"""Pretrained encoders: Table 3 of the paper. RoBERTa becomes a long-short encoder, goes on with its pretraining, and
learns to tell the reviews of IMDb apart.

Any RoBERTa or BERT takes RoBERTa's place: `--checkpoint` is a folder, a name on the Hugging Face hub, or a run. The
checkpoints of all these runs are models of transformers.
"""

from __future__ import annotations

import re
from pathlib import Path

from longshort.lab.data.imdb import Imdb
from longshort.lab.data.source import FileSource
from longshort.lab.data.tokenised import Documents, Tokenised
from longshort.lab.recipes.lra import attention_label, attention_named
from longshort.lab.tasks.text import MaskedText, TextClassification
from longshort.lab.train import AdamW, Run, Schedule
from longshort.lab.trained import locate
from longshort.lab.trained.encoder import MaskedEncoderConfig, TextClassifierConfig
from longshort.nn.spec import Full, LongShort

USUAL = ("roberta-base", "roberta-large")  # that recipes begin with


def base(
    data: Path,
    checkpoint: str = "roberta-base",
    attention: str = "128,64",
    length: int = 4_096,
    pattern: str = "*",
    batch: int = 64,
    seed: int = 0,
) -> Run:
    """RoBERTa-base, converted, restores hidden tokens of long texts, by Longformer's procedure as in the paper.
    The paper gives no figure of this step. Ours: not yet run.

    65,000 steps of 64 pieces of 4,096 tokens: the rate rises to 3e-5 over 500 steps and falls with the third power of
    what is left.
    Command: longshort train roberta.base --data texts/ --accumulate 8, then longshort train roberta.imdb --checkpoint
    out/roberta.base.w128r64.n4096.seed0

    Args:
        data: a text file, or a folder of them; the last twentieth is for development
        checkpoint: folder or name on the Hugging Face hub of a RoBERTa or BERT, or a run
        attention: WINDOW,RANK, or full
        length: the most tokens of a text
        pattern: names of the files to read, in a folder
        batch: pieces of a step
        seed: of what is new in the model, dropout, the order of pieces and what is hidden
    """
    return masked("base", data, checkpoint, attention, length, pattern, batch, seed)


def large(
    data: Path,
    checkpoint: str = "roberta-large",
    attention: str = "128,64",
    length: int = 4_096,
    pattern: str = "*",
    batch: int = 64,
    seed: int = 0,
) -> Run:
    """RoBERTa-large, converted, restores hidden tokens of long texts, as roberta.base.
    The paper gives no figure of this step. Ours: not yet run.

    Command: longshort train roberta.large --data texts/ --accumulate 16, then longshort train roberta.imdb --checkpoint
    out/roberta.large.w128r64.n4096.seed0

    Args:
        data: a text file, or a folder of them; the last twentieth is for development
        checkpoint: folder or name on the Hugging Face hub of a RoBERTa or BERT, or a run
        attention: WINDOW,RANK, or full
        length: the most tokens of a text
        pattern: names of the files to read, in a folder
        batch: pieces of a step
        seed: of what is new in the model, dropout, the order of pieces and what is hidden
    """
    return masked("large", data, checkpoint, attention, length, pattern, batch, seed)


def masked(
    name: str, data: Path, checkpoint: str, attention: str, length: int, pattern: str, batch: int, seed: int
) -> Run:
    start = resolve_checkpoint(checkpoint)
    return Run(
        name=run_name(name, checkpoint, attention, length, seed),
        model=MaskedEncoderConfig(start, length=length, attention=parse_attention(attention), seed=seed),
        task=MaskedText(
            Documents(FileSource(data, pattern, test_share=0.0), start, length),
            length=length,
            sequences=batch,
            order=seed,
            evaluation_batch=8,
            evaluation_count=400,
        ),
        steps=65_000,
        optimizer=AdamW(lr=3e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01),
        schedule=Schedule("polynomial", warmup=500, power=3.0),
        seed=seed,
        log_every=50,
        evaluate_every=1_000,
        save_every=500,
    )


def imdb(
    checkpoint: str = "roberta-base",
    data: Path | None = None,
    attention: str = "128,64",
    length: int = 4_096,
    rate: float = 3e-5,
    batch: int = 32,
    seed: int = 0,
) -> Run:
    """Table 3: whether a review of IMDb is positive, by a converted encoder.
    Paper: 96.0 from RoBERTa-base and 96.8 from RoBERTa-large, after roberta.base and roberta.large; 95.3 and 96.5 of
    RoBERTa itself, 95.7 of Longformer-base. Ours: not yet run.

    5 epochs of 22,500 reviews, the best of them by the other 2,500; the paper names no settings. Without
    --checkpoint RUN of a roberta.base, the converted model has not been trained on long texts.
    Command: longshort train roberta.imdb --data imdb/, then longshort evaluate out/roberta.imdb.w128r64.n4096.seed0

    Args:
        checkpoint: folder or name on the Hugging Face hub of a RoBERTa or BERT, converted or not, or a run
        data: IMDb: the folder aclImdb, its tar, or a folder of .jsonl or .parquet files
        attention: WINDOW,RANK, or full (the original's own, with its positions repeated)
        length: the most tokens of a review, which is cut there
        rate: of learning, at its highest
        batch: reviews of a step
        seed: of what is new in the model, dropout and the order of reviews
    """
    start = resolve_checkpoint(checkpoint)
    return Run(
        name=run_name("imdb", checkpoint, attention, length, seed),
        model=TextClassifierConfig(start, length=length, attention=parse_attention(attention), seed=seed),
        task=TextClassification(
            Tokenised(Imdb(data, held_out=0.1), start), length=length, sequences=batch, order=seed, evaluation_batch=64
        ),
        steps=3_515,
        optimizer=AdamW(lr=rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01),
        schedule=Schedule("linear", warmup=352),
        clip=1.0,
        seed=seed,
        log_every=50,
        evaluate_every=703,
        save_every=200,
    )


def resolve_checkpoint(checkpoint: str) -> str:
    """Of a run, its best checkpoint. Folders become absolute, so that the record means the same from anywhere."""
    where = locate(checkpoint)
    return str(Path(where).resolve()) if Path(where).is_dir() else where


def run_name(name: str, checkpoint: str, attention: str, length: int, seed: int) -> str:
    """With the checkpoint's own name, unless it is the one that a recipe has by itself."""
    own = "" if checkpoint in USUAL else f".{label_of(checkpoint)}"
    return f"roberta.{name}{own}.{attention_label(attention)}.n{length}.seed{seed}"


def label_of(checkpoint: str) -> str:
    """Short, for names of folders: that of its own folder, or on the hub."""
    return Path(checkpoint).name.removeprefix("roberta.")


def parse_attention(attention: str) -> LongShort | Full:
    if attention != "full" and not re.fullmatch(r"\d+,\d+", attention):
        raise ValueError(f"attention must be WINDOW,RANK, such as 128,64, or full, got {attention!r}")
    spec = attention_named(attention)
    assert isinstance(spec, LongShort | Full)
    return spec
