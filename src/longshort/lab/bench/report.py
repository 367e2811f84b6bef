"""What was measured on a GPU: a row a comparison, as a table, as JSON and as a figure."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longshort.geometry import Causal
from longshort.lab.bench.flops import Pass
from longshort.lab.bench.lengths import Timed, draw_lengths
from longshort.lab.bench.settings import Setting

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.table import Table

TRAINING: Pass = "forward + backward"
CAPTION = (
    "ms: medians, in turns. MiB: peak above what was allocated before, gradients included. TFLOP/s: ours, on visible "
    "pairs. FlexAttention: the same mask, but without positions or bias, which ours has."
)
SHORT = 60  # characters of a reason that the table shows


@dataclass(frozen=True)
class Side:
    ms: float | None = None
    mib: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Row:
    setting: Setting
    what: str
    against: str
    which: Pass
    ours: Side
    theirs: Side

    @property
    def ratio(self) -> float | None:
        return None if self.ours.ms is None or self.theirs.ms is None else self.theirs.ms / self.ours.ms

    @property
    def memory_ratio(self) -> float | None:
        return None if self.ours.mib is None or not self.theirs.mib else self.ours.mib / self.theirs.mib

    @property
    def tflops(self) -> float | None:
        if self.what != "core" or self.ours.ms is None:
            return None
        return self.setting.flops(self.which) / (self.ours.ms * 1e9)

    @property
    def aimed(self) -> bool:
        """Aims are for a training step, against full attention."""
        return self.which == TRAINING and self.against != "FlexAttention"

    @property
    def target(self) -> float | None:
        return self.setting.targets.get(self.what) if self.aimed else None

    @property
    def memory_target(self) -> float | None:
        return self.setting.memory_target if self.aimed and self.what == "layer" else None

    @property
    def tflops_target(self) -> float | None:
        return self.setting.tflops_target if self.aimed and self.what == "core" else None


def table_of(rows: Sequence[Row], title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=CAPTION, caption_justify="left")
    for column in ("case", "what", "pass"):
        table.add_column(column)
    for column in ("ours, ms", "theirs, ms", "ratio", "target", "ours, MiB", "theirs, MiB", "TFLOP/s"):
        table.add_column(column, justify="right")
    for _, group in groupby(rows, key=lambda row: row.setting.name):
        for row in group:
            table.add_row(*cells(row))
        table.add_section()
    return table


def cells(row: Row) -> list[str]:
    from rich.markup import escape

    ours, theirs = (
        escape(side.failure[:SHORT]) if side.failure else number(side.ms, "{:.3f}") for side in (row.ours, row.theirs)
    )
    less = None if row.memory_ratio is None else -row.memory_ratio
    most = None if row.memory_target is None else -row.memory_target
    return [
        row.setting.name,
        f"{row.what} / {row.against}",
        row.which,
        ours,
        theirs,
        coloured(number(row.ratio, "{:.2f}×"), row.ratio, row.target),
        aims(row),
        coloured(number(row.ours.mib, "{:,.0f}"), less, most),
        number(row.theirs.mib, "{:,.0f}"),
        coloured(number(row.tflops, "{:.0f}"), row.tflops, row.tflops_target),
    ]


def aims(row: Row) -> str:
    parts = [
        number(row.target, "{:.1f}×"),
        number(row.memory_target, "{:.0f}× MiB"),
        number(row.tflops_target, "{:.0f} TFLOP/s"),
    ]
    return ", ".join(part for part in parts if part)


def number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def coloured(text: str, value: float | None, least: float | None) -> str:
    if value is None or least is None:
        return text
    return f"[{'green' if value >= least else 'red'}]{text}[/]"


def sentence(row: Row) -> str:
    """One row as a line of a log."""
    *names, ours, theirs = cells(row)[:5]
    compared = number(row.ratio, ": {:.2f}×")
    return f"{', '.join(names)}: {ours} against {theirs}{compared}{number(row.tflops, ', {:.0f} TFLOP/s')}"


def report_of(rows: Sequence[Row], repeats: int, device: torch.device) -> dict[str, Any]:
    what = "bf16, medians in turns; MiB at the peak above what was allocated before, gradients included"
    return {"what": what, "machine": machine(device), "repeats": repeats, "results": [line(row) for row in rows]}


def line(row: Row) -> dict[str, Any]:
    setting = row.setting
    return {
        "case": setting.name,
        "what": row.what,
        "against": row.against,
        "pass": row.which,
        **{name: getattr(setting, name) for name in ("batch", "tokens", "width", "heads", "rows")},
        "geometry": repr(setting.geometry),
        **{f"ours_{name}": value for name, value in vars(row.ours).items()},
        **{f"theirs_{name}": value for name, value in vars(row.theirs).items()},
        **{name: getattr(row, name) for name in ("ratio", "target", "memory_ratio", "memory_target")},
        **{name: getattr(row, name) for name in ("tflops", "tflops_target")},
    }


def machine(device: torch.device) -> dict[str, str | None]:
    """What a time depends on."""
    try:
        triton = import_module("triton").__version__
    except ImportError:
        triton = None
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else platform.machine(),
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda,
    }


def machine_line(device: torch.device) -> str:
    found = machine(device)
    return ", ".join(
        [str(found["device"]), *(f"{name} {found[name]}" for name in ("torch", "triton", "cuda") if found[name])]
    )


def draw(rows: Sequence[Row], path: Path, device: torch.device) -> bool:
    """The causal layer's time against length, as far as it was measured; whether there was something to draw."""
    causal = [
        (row, Timed(row.setting.tokens, row.ours.ms, row.theirs.ms))
        for row in rows
        if isinstance(row.setting.geometry, Causal) and (row.what, row.which) == ("layer", TRAINING)
        if row.ours.ms is not None and row.theirs.ms is not None
    ]
    if causal:
        first = causal[0][0].setting
        draw_lengths(
            [timed for _, timed in causal],
            path,
            machine=machine_line(device),
            ours="causal long-short layer, with positions",
            theirs="full causal layer (scaled_dot_product_attention)",
            tokens=f"tokens of a sequence; {first.batch * first.tokens:,} in every batch",
            step="forward + backward, bf16",
        )
    return bool(causal)
