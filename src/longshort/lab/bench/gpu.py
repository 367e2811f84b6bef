"""Long-short attention against full attention on a GPU, in bf16: layers and the operation alone, time and memory.

`longshort bench attention --device cuda`; or `python -m longshort.lab.bench.gpu`, without tyro.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from longshort.lab.bench.flops import Pass
from longshort.lab.bench.report import Row, Side, draw, machine_line, report_of, sentence, table_of
from longshort.lab.bench.run import named
from longshort.lab.bench.settings import Setting, settings
from longshort.lab.bench.sides import comparisons
from longshort.lab.bench.timing import Step, Work, graphed, milliseconds, peak_mib
from longshort.lab.runs.files import write_json

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console, Group

REPEATS = 20
OUT = Path("out/bench_attention.json")
NO_CUDA = "no CUDA device here; `longshort bench attention --device cpu` measures the layers on the CPU"

PASSES: dict[Pass, Callable[[Work], Step]] = {
    "forward": lambda work: work.forward,
    "forward + backward": lambda work: work.forward_backward,
    "forward + backward, CUDA graph": graphed,
}


def bench_gpu(
    cases: Sequence[Setting],
    out: Path,
    *,
    repeats: int = REPEATS,
    flex: bool = False,
    device: torch.device | str = "cuda",
    console: Console,
) -> list[Row]:
    """Measure the cases, showing the table as it grows; `out` holds at any time what the table shows."""
    from rich.live import Live

    device = torch.device(device)
    rows: list[Row] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, report_of(rows, repeats, device))  # a path that cannot be written shows now
    try:
        with Live(console=console, transient=True) as live:
            for case in cases:
                live.update(progress(rows, case, console), refresh=True)
                for row in measure(case, repeats=repeats, flex=flex, device=device):
                    rows.append(row)
                    write_json(out, report_of(rows, repeats, device))
                    live.update(progress(rows, case, console), refresh=True)
                    if not console.is_terminal:  # a log cannot show a table that grows
                        console.print(sentence(row), soft_wrap=True, highlight=False)
    finally:  # an interrupted run too prints and draws what it has measured
        console.print(table_of(rows, machine_line(device)))
        console.print(f"results: {out}", soft_wrap=True, highlight=False)
        if draw(rows, out.with_suffix(".png"), device):
            console.print(f"time against length: {out.with_suffix('.png')}", soft_wrap=True, highlight=False)
    return rows


def progress(rows: list[Row], case: Setting, console: Console) -> Group:
    """As many of the last rows as the screen holds, and what comes next."""
    from rich.console import Group

    last = max((console.height - 10) * 3 // 4, 4)
    return Group(table_of(rows[-last:], ""), f"measuring {case.name} ...")


def measure(case: Setting, *, repeats: int, flex: bool, device: torch.device) -> Iterator[Row]:
    """The rows of one case: layer and core, each pass."""
    torch.manual_seed(0)
    for what, against, ours, theirs in comparisons(case, device, flex=flex):
        for which, prepare in PASSES.items():
            sides = side_by_side(ours, theirs, prepare, repeats=repeats, device=device)
            yield Row(case, what, against, which, *sides)


def side_by_side(
    ours: Callable[[], Work],
    theirs: Callable[[], Work],
    prepare: Callable[[Work], Step],
    *,
    repeats: int,
    device: torch.device,
) -> list[Side]:
    """Both sides in turns; where one cannot run, the other alone."""
    tried = [attempt(make, prepare, device) for make in (ours, theirs)]
    try:
        times = iter(milliseconds(*(step for step, _ in tried if step), repeats=repeats, device=device))
    except Exception as error:
        return [replace(side, failure=side.failure or reason(error)) for _, side in tried]
    return [replace(side, ms=next(times)) if step else side for step, side in tried]


def attempt(
    make: Callable[[], Work], prepare: Callable[[Work], Step], device: torch.device
) -> tuple[Step | None, Side]:
    """The step, warm, with the memory it takes; or why there is none: a benchmark loses a row by it, not the run."""
    try:
        work = make()
        step = prepare(work)
        step()  # compiles and tunes, and takes the memory that libraries keep
        work.clear()
        mib = peak_mib(step, device)
        work.clear()
        return step, Side(mib=mib or None)  # a CUDA graph took its memory when it was captured
    except Exception as error:
        failure = reason(error)
    gc.collect()  # what the failed step held is in cycles with its traceback
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None, Side(failure=failure)


def reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return " ".join([f"{type(error).__name__}:", *str(error).split()])[:500]


def wide_console() -> Console:
    """As wide as the terminal; a log is as wide as the table."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m longshort.lab.bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file; a figure lies beside it")
    parser.add_argument("--only", default="", help="measure the cases with this in their name")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed turns, of which the median counts")
    parser.add_argument("--flex", action="store_true", help="against FlexAttention too; compiles long")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"repeats must be at least 1, got {options.repeats}")
    try:
        cases = named(settings(), options.only)
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        print(f"longshort: {NO_CUDA}", file=sys.stderr)
        return 1
    try:
        bench_gpu(cases, options.out, repeats=options.repeats, flex=options.flex, console=wide_console())
    except OSError as error:
        parser.error(f"cannot write {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        print("longshort: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
