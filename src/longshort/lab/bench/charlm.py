"""The character language models on a GPU, in bf16: training steps against a GPT of the same size, and generation.

`longshort bench charlm`; where tyro is not installed, `python -m longshort.lab.bench.charlm --only 2,048`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.generate import generate
from longshort.lab.bench.gpt import GPT
from longshort.lab.bench.gpu import wide_console
from longshort.lab.bench.report import machine_line
from longshort.lab.bench.run import named
from longshort.lab.bench.timing import Work, graphed, milliseconds, peak_mib
from longshort.lab.runs.files import write_json
from longshort.models.charlm import PRESETS, CharLM, CharLMConfig

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console

OUT = Path("out/bench_charlm.json")
WARM, WRITTEN = 64, 128  # characters before those over which generation is timed, and those


@dataclass(frozen=True)
class Row:
    """One model in one case. ms: launched kernel by kernel, and as one CUDA graph."""

    case: str
    model: str
    ms: float
    graph_ms: float | None
    gib: float | None


@dataclass(frozen=True)
class Training:
    """Forward and backward pass, compiled; ours with a full cache as long as the sequences, the GPT without one."""

    length: int
    sequences: int
    config: CharLMConfig = PRESETS["small"]

    @property
    def name(self) -> str:
        return f"training step, {self.length:,} × {self.sequences}"

    def measure(self, repeats: int, device: torch.device) -> Iterator[Row]:
        ours = replace(self.config, memory=self.length)
        makers: dict[str, Callable[[], nn.Module]] = {
            "GPT, SDPA": lambda: GPT(self.config, self.length),
            "long-short, the paper's": lambda: CharLM(ours),
            "long-short, rotary": lambda: CharLM(replace(ours, positions="rotary")),
        }
        for model, make in makers.items():
            torch.compiler.reset()
            work = self.work(make().to(device), device)
            (ms,) = milliseconds(work.forward_backward, repeats=repeats, device=device)
            mib = peak_mib(work.forward_backward, device)
            work.clear()
            graph_ms = milliseconds(graphed(work), repeats=repeats, device=device)[0] if device.type == "cuda" else None
            yield Row(self.name, model, ms, graph_ms, None if mib is None else mib / 1024)
            del work
            gc.collect()
            torch.cuda.empty_cache()

    def work(self, model: nn.Module, device: torch.device) -> Work:
        text = torch.randint(0, self.config.vocabulary, (self.sequences, self.length + 1), device=device)
        inputs, targets = text[:, :-1], text[:, 1:].flatten()
        caches: Any = None
        if device.type == "cuda":
            model.compile() if isinstance(model, CharLM) else [block.compile() for block in model.blocks]  # type: ignore
        model.train()
        if isinstance(model, CharLM):
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
                for _ in range(2):
                    _, caches = model(inputs, caches)

        def loss() -> Tensor:
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(inputs, caches)[0] if isinstance(model, CharLM) else model(inputs)
                return F.cross_entropy(logits.float().flatten(0, 1), targets)

        return Work(loss, tuple(model.parameters()), torch.ones((), device=device))


@dataclass(frozen=True)
class Generation:
    """Time per character, with full caches."""

    contexts: tuple[int, ...] = (1_024, 32_768)
    config: CharLMConfig = PRESETS["small"]
    name = "generation"

    def measure(self, repeats: int, device: torch.device) -> Iterator[Row]:
        for positions in ("relative", "rotary"):
            for context in self.contexts:
                config = replace(self.config, positions=positions, memory=context)
                model = CharLM(config).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
                length = context + max(config.by_layer(config.window))
                prompt = bytes(torch.randint(0, 256, (length,)).tolist())
                ms = time_per_character(model, prompt)
                yield Row(f"generation, {positions} positions", f"memory of {context:,} characters", ms, None, None)


def time_per_character(model: CharLM, prompt: bytes) -> float:
    """From when the caches are full, and the kernels and graphs for their shapes are made."""
    writing = generate(model, prompt, WARM + WRITTEN, seed=0)
    for _ in range(WARM):
        next(writing)
    began = time.perf_counter()
    for _ in writing:
        pass
    return 1e3 * (time.perf_counter() - began) / WRITTEN


def cases() -> list[Training | Generation]:
    return [Training(2_048, 32), Training(8_192, 16), Generation()]


def bench_charlm(
    chosen: Sequence[Training | Generation],
    out: Path,
    *,
    repeats: int,
    console: Console,
    device: torch.device | str = "cuda",
) -> list[Row]:
    """Measure the cases, print the table; `out` holds at any time what was measured."""
    device = torch.device(device)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for case in chosen:
        console.print(f"measuring: {case.name}", highlight=False)
        for row in case.measure(repeats, device):
            rows.append(row)
            write_json(out, {"machine": machine_line(device), "rows": [asdict(r) for r in rows]})
    console.print(machine_line(device), soft_wrap=True, highlight=False)
    console.print(table_of(rows))
    console.print(f"written to {out}", soft_wrap=True, highlight=False)
    return rows


def table_of(rows: Sequence[Row]) -> Any:
    """Ratios are to the first model of a case: its time by this one's, and the same for graphs."""
    from rich.table import Table

    table = Table(title="bf16; ms a step or character", title_justify="left")
    for column in ("case", "model", "ms", "ratio", "CUDA graph, ms", "ratio", "GiB"):
        table.add_column(column, justify="left" if column in ("case", "model") else "right")
    first: dict[str, Row] = {}
    for row in rows:
        base = first.setdefault(row.case, row)
        graph = ("", "") if row.graph_ms is None or base.graph_ms is None else (
            f"{row.graph_ms:.1f}", f"{base.graph_ms / row.graph_ms:.2f}×"
        )  # fmt: skip
        gib = "" if row.gib is None else f"{row.gib:.1f}"
        table.add_row(row.case, row.model, f"{row.ms:.1f}", f"{base.ms / row.ms:.2f}×", *graph, gib)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    bench_charlm(named(cases(), given.only), OUT, repeats=given.repeats, console=wide_console())
