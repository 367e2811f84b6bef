"""Time and memory of training steps in JAX, long-short attention beside others, at the sizes of the paper's JAX table
(those of the Long Range Arena's own code):

python -m longshort.lab.jax.bench
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

from longshort.jax.sequence import PairClassifier, SequenceClassifier, SequenceConfig
from longshort.jax.specs import AttentionSpec, Full, Linformer, Local, LongShort, Performer
from longshort.lab.jax.train import command_line
from longshort.lab.jax.trainer import device
from longshort.lab.runs.files import write_json

SIZES = {
    "listops": SequenceConfig(
        Full(), classes=10, length=2000, layers=6, width=512, heads=8, feedforward=2048, head=2048
    ),
    "text": SequenceConfig(Full(), classes=2, length=1000, layers=4, width=256, heads=4, feedforward=1024, head=1024),
    "retrieval": SequenceConfig(
        Full(), classes=2, length=4000, layers=4, width=128, heads=4, feedforward=512, head=512
    ),
}
ATTENTIONS: dict[str, AttentionSpec] = {
    "full": Full(),
    "full, cuDNN's flash attention": Full("cudnn"),
    "long-short, 8,32": LongShort(window=8, rank=32),
    "local, 50": Local(window=50),
    "Linformer, 256": Linformer(rank=256),
    "Performer, 256": Performer(features=256),
}
ON_GPUS = "full, cuDNN's flash attention"
# Seconds a batch of the paper's table, on an A100.
PAPER = {
    "full": (0.444, 0.071, 0.273),
    "long-short, 8,32": (0.187, 0.037, 0.201),
    "local, 50": (0.151, 0.037, 0.142),
    "Linformer, 256": (0.135, 0.031, 0.117),
    "Performer, 256": (0.138, 0.031, 0.120),
}


@dataclass(frozen=True)
class Measured:
    """A training step. ms: the median of its repeats. mib: memory beside inputs and outputs, as the compiler plans it.
    failed: why there are no numbers."""

    size: str
    attention: str
    ms: float | None
    mib: float | None
    failed: str = ""


def measure(size: str, attention: str, batch: int, repeats: int, dtype: str) -> Measured:
    try:
        step, state = build_step(size, ATTENTIONS[attention], batch, dtype)
        compiled = step.lower(*state).compile()
        mib = compiled.memory_analysis().temp_size_in_bytes / 2**20
        times = []
        for _ in range(repeats + 1):  # the first one warms up
            begin = time.perf_counter()
            state = (*jax.block_until_ready(compiled(*state)), *state[2:])
            times.append(time.perf_counter() - begin)
    except (RuntimeError, ValueError, NotImplementedError) as error:  # out of memory, or cuDNN does not take it
        return Measured(size, attention, None, None, str(error).splitlines()[0])
    return Measured(size, attention, 1e3 * statistics.median(times[1:]), mib)


def build_step(size: str, spec: AttentionSpec, batch: int, dtype: str) -> tuple[Any, tuple[Any, ...]]:
    """A step to be compiled, and its arguments: weights, optimizer state and a batch without padding."""
    config = replace(SIZES[size], attention=spec, dtype=dtype)
    kind = PairClassifier if size == "retrieval" else SequenceClassifier
    parts: Any = nnx.split(kind(config, rngs=nnx.Rngs(0)), nnx.Param, ...)
    graph, weights, rest = parts
    optimizer = optax.adamw(1e-4)
    rng = np.random.default_rng(0)
    texts = [
        jnp.asarray(rng.integers(1, config.vocabulary, (batch, config.length)))
        for _ in range(1 + (size == "retrieval"))
    ]
    labels = jnp.asarray(rng.integers(0, config.classes, batch))

    @jax.jit
    def step(weights: Any, state: Any, labels: Any, *texts: Any) -> tuple[Any, Any]:
        def loss(weights: Any) -> Any:
            model: Callable[..., Any] = nnx.merge(graph, weights, rest, copy=True)
            scores = model(*texts).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    return step, (weights, optimizer.init(weights), labels, *texts)


def table(results: Sequence[Measured], batch: int, dtype: str) -> Table:
    title = f"A training step, {batch} sequences, {dtype}, on {device()}"
    lines = Table(title=title, title_justify="left")
    for column in ("size", "attention", "ms", "of full's", "MiB", "paper, s (A100)"):
        lines.add_column(column, justify="left" if column in ("size", "attention") else "right")
    full = {each.size: each.ms for each in results if each.attention == "full"}
    for each in results:
        ratio = full.get(each.size)
        lines.add_row(
            each.size,
            each.attention,
            each.failed or f"{each.ms:.1f}",
            "" if each.ms is None or ratio is None else f"{each.ms / ratio:.2f}",
            "" if each.mib is None else f"{each.mib:,.0f}",
            f"{PAPER[each.attention][list(SIZES).index(each.size)]:.3f}" if each.attention in PAPER else "",
        )
    return lines


def main(
    *,
    batch: int = 32,
    repeats: int = 10,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    only: str = "",
    out: Path = Path("out/bench_jax.json"),
) -> None:
    """Time training steps in JAX, long-short attention beside full, local, Linformer's and Performer's.

    Args:
        batch: sequences of a step; the paper's table has 32
        repeats: timed steps of each case, of which the median counts
        dtype: what is computed in
        only: measure the cases with this in their name, such as text or full
        out: file for the result
    """
    if batch < 1 or repeats < 1:
        raise ValueError(f"batch and repeats must be at least 1, got {batch} and {repeats}")
    names = [name for name in ATTENTIONS if name != ON_GPUS or jax.default_backend() == "gpu"]
    cases = [(size, name) for size in SIZES for name in names if only in f"{size}, {name}"]
    if not cases:
        raise ValueError(f"no case has {only!r} in its name; there are {', '.join(SIZES)} with {', '.join(names)}")
    if out.is_dir():
        raise ValueError(f"out must be a file, and {out} is a folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console(width=max(Console().width, 100))
    results: list[Measured] = []
    with console.status("compiling") as status:
        for size, name in cases:
            status.update(f"{size}, {name}")
            results.append(measure(size, name, batch, repeats, dtype))
            facts = {"batch": batch, "dtype": dtype, "device": device(), "jax": jax.__version__}
            write_json(out, {**facts, "steps": [asdict(each) for each in results]})
    console.print(table(results, batch, dtype))
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(command_line(main, "python -m longshort.lab.jax.bench"))
