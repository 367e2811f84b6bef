"""The Long Range Arena in JAX, with the data, batches and settings of PyTorch's recipes.

Every recipe takes `attention`: "8,32" is long-short attention with window 8 and rank 32 ("0,4" the projection alone,
"8,0" the window alone), and the others have names. dtype is what is computed in; weights are float32.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from longshort.jax.sequence import SequenceConfig
from longshort.jax.specs import AttentionSpec, Full, Linformer, Local, LongShort, Performer
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.listops import ListOps
from longshort.lab.jax.tasks import Labels
from longshort.lab.runs.optimizers import AdamW
from longshort.lab.runs.run import Run
from longshort.lab.runs.schedule import Schedule

Dtype = Literal["float32", "bfloat16"]
ATTENTIONS: dict[str, AttentionSpec] = {
    "full": Full(),
    "local": Local(window=50),
    "linformer": Linformer(rank=256),
    "performer": Performer(features=256),
}


def attention_named(name: str) -> AttentionSpec:
    """ "8,32", or a name."""
    if name == "0,0":
        raise ValueError("window and rank are both 0: nothing to attend to")  # before any data is made
    if sizes := re.fullmatch(r"(\d+),(\d+)", name):
        return LongShort(int(sizes[1]), int(sizes[2]))
    if name not in ATTENTIONS:
        raise ValueError(
            f"there is no attention {name!r}; there are WINDOW,RANK such as '8,32', and {', '.join(ATTENTIONS)}"
        )
    return ATTENTIONS[name]


def listops(
    attention: str = "8,32", brackets: bool = False, data: Path | None = None, dtype: Dtype = "float32", seed: int = 0
) -> Run:
    """ListOps, the paper's task (no closing brackets) or the well-posed one (with them).
    Paper, in JAX, without brackets: 37.65. Ours: not yet run to the end; 16,2 had 33.1 after 2,000 of the 5,000 steps.

    Cost: 0.65 s a step with 16,2 on 2 processor cores.
    Command: python -m longshort.lab.jax.train listops

    Args:
        attention: WINDOW,RANK, or full, local, linformer, performer
        brackets: with closing brackets
        data: folder with the official basic_train.tsv, basic_val.tsv, basic_test.tsv; generated unless given
        dtype: what is computed in
        seed: of weights, dropout and the order of examples
    """
    return arena_run(
        "listops_brackets" if brackets else "listops",
        attention,
        seed,
        SequenceConfig(attention_named(attention), classes=10, length=2_048, dtype=dtype),
        Labels(ListOps(brackets, data), length=2_000, order=seed),
        steps=5_000,
        warmup=1_000,
        evaluate_every=50,
    )


def text(attention: str = "8,32", data: Path | None = None, dtype: Dtype = "float32", seed: int = 0) -> Run:
    """Text: whether a review of IMDb, read byte by byte, is positive. The checkpoint is chosen on a tenth of the
    training set.
    Paper, in PyTorch and chosen on the test set: 66.0 with 8,32. Ours in JAX: not yet run.

    Command: python -m longshort.lab.jax.train text

    Args:
        attention: WINDOW,RANK, or full, local, linformer, performer
        data: IMDb: the folder aclImdb, its tar, or a folder of .jsonl or .parquet files
        dtype: what is computed in
        seed: of weights, dropout and the order of examples
    """
    spec = attention_named(attention)
    return arena_run(
        "text",
        attention,
        seed,
        SequenceConfig(spec, classes=2, length=4_096, dropout=0.1, attention_dropout=0.1, dtype=dtype),
        Labels(Imdb(data, held_out=0.1), length=4_000, order=seed),
        steps=20_000,
        warmup=8_000,
        evaluate_every=500,
    )


def arena_run(
    name: str,
    attention: str,
    seed: int,
    model: SequenceConfig,
    task: Labels,
    *,
    steps: int,
    warmup: int,
    evaluate_every: int,
) -> Run:
    """The name, the optimizer and the schedule that all tasks have in common."""
    label = re.sub(r"^(\d+),(\d+)$", r"w\1r\2", attention)
    return Run(
        name=f"jax.{name}.{label}.seed{seed}",
        model=model,
        task=task,
        steps=steps,
        optimizer=AdamW(lr=1e-4, eps=1e-6, weight_decay=0.0),
        schedule=Schedule("linear", warmup=warmup),
        seed=seed,
        log_every=100,
        evaluate_every=evaluate_every,
        save_every=1_000,
    )


def resized(
    run: Run,
    *,
    steps: int | None = None,
    batch: int | None = None,
    longest: int | None = None,
    evaluate_every: int | None = None,
) -> Run:
    """The run with other sizes where they are given. See Run.with_steps."""
    if steps is not None:
        run = run.with_steps(steps)
    if batch is not None:
        run = replace(run, task=replace(run.task, sequences=batch))
    if longest is not None:
        positions = -(-longest // 1024) * 1024
        run = replace(run, task=replace(run.task, length=longest), model=replace(run.model, length=positions))
    if evaluate_every is not None:
        run = replace(run, evaluate_every=evaluate_every)
    return run
