"""The demo: train a small model on Python's standard library, let it write, compare it with compressors, draw it."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshort.generate import Sampling, generate
from longshort.lab.evaluate import evaluate
from longshort.lab.figures.curves import draw_curves
from longshort.lab.figures.shares import draw_shares, shares_on
from longshort.lab.recipes.charlm import demo as recipe
from longshort.lab.recipes.options import adjusted
from longshort.lab.runs.log import read_log
from longshort.lab.train import train
from longshort.lab.train.processes import Processes
from longshort.lab.trained import Trained

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console

PROMPT = b'    def __init__(self, name):\n        """'
LETTERS = 400  # of the sample


def demo(out: Path, *, console: Console, steps: int | None = None) -> list[Path]:
    """Train, or go on with a demo that was interrupted; print sample and comparison, write two figures."""
    run = adjusted(recipe(), steps=steps)
    train(run, out, resume=True, cpu=True, console=console)
    model: Any = Trained.open(str(out / run.name), "last").model()
    test = run.task.splits.test

    console.rule("a sample", align="left")
    written = bytes(generate(model, PROMPT, LETTERS, Sampling(temperature=0.7), seed=1))
    console.print((PROMPT + written).decode(errors="replace"), highlight=False, markup=False)

    console.rule("bits per character on text it has not seen", align="left")
    results = evaluate(model, run.task.evaluators("test"), Processes("fp32", cpu=True))
    bits = {"this model": results["test"]["bpc"].mean}
    content = test.tobytes()
    for name, packed in {"gzip -9": gzip.compress(content), "bz2 -9": bz2.compress(content)}.items():
        bits[name] = 8 * len(packed) / len(test)
    for name, value in bits.items():
        console.print(f"{name:12} {value:.2f}", highlight=False)
    console.print(f"({len(test):,} bytes of Python's own source files; the compressors start from nothing)")

    curve, attention = out / "loss.png", out / "attention.png"
    others = {f"test text, {name}:": value for name, value in bits.items()}
    draw_curves({run.name: read_log(out / run.name)}, curve, lines=others)
    draw_shares(shares_on(model, test, run.task.length), attention, title="Where attention goes, by layer")
    for path, what in {curve: "loss", attention: "where attention goes"}.items():
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)
    console.print(f"go on with it: longshort generate {out / run.name}", soft_wrap=True, highlight=False)
    return [curve, attention]
