"""The models of the Long Range Arena: how much they compute, beside the paper's Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longshort.lab.bench.macs import count
from longshort.lab.recipes.lra_table import LINES, Line
from longshort.lab.runs.files import write_json
from longshort.models.sequence import PairClassifier, SequenceClassifier, SequenceConfig

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console


def counted() -> list[Line]:
    """The lines for which the paper has a number."""
    return [line for line in LINES if line.macs is not None]


def macs_of(line: Line) -> float:
    """In G, of one sample of the paper's greatest length, CLS among its tokens. As in the paper, features of all tokens
    are counted, also in the last layer, of which our classifiers compute those of CLS alone."""
    config = line.run(0).model
    assert isinstance(config, SequenceConfig)
    model = config.build()
    assert isinstance(model, SequenceClassifier | PairClassifier)
    texts, parts = (2, 4) if isinstance(model, PairClassifier) else (1, 1)  # of what the head sees
    encoding = count(model.encoder, torch.ones(1, config.length - 1, dtype=torch.long))
    scoring = count(model.head, torch.ones(1, parts * config.width))
    return (texts * encoding + scoring) / 1e9


def bench_macs(lines: Sequence[Line], out: Path, *, console: Console) -> list[dict[str, Any]]:
    """Count, print the table, write it to `out`."""
    from rich.table import Table

    out.parent.mkdir(parents=True, exist_ok=True)
    table = Table(
        title="10⁹ multiply-accumulates of one sample, as fvcore counts, of all tokens' features", title_justify="left"
    )
    for column in ("task", "attention", "paper", "counted", ""):
        table.add_column(column, justify="right" if column in ("paper", "counted") else "left")
    facts = []
    for line in lines:
        macs = macs_of(line)
        facts.append({"line": line.name, "paper": line.macs, "counted": macs})
        same = f"{macs:.2f}" == f"{line.macs:.2f}"
        table.add_row(line.task.name, line.attention, f"{line.macs:.2f}", f"{macs:.3f}", "" if same else "differs")
        write_json(out, {"lines": facts})
    console.print(table)
    console.print(f"written to {out}", soft_wrap=True, highlight=False)
    return facts
