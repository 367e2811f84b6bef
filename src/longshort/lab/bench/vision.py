"""The vision models on a GPU, in bf16, over the size of images: latency, training steps and memory, beside the same
networks with full attention and beside timm's Swin.

`longshort bench vision`; where tyro is not installed, `python -m longshort.lab.bench.vision --only CvT`.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.bench.gpu import wide_console
from longshort.lab.bench.report import machine_line
from longshort.lab.bench.run import named
from longshort.lab.bench.timing import Step, Work, graphed, milliseconds, peak_mib
from longshort.lab.runs.files import write_json
from longshort.models import cvt, vil
from longshort.models.cvt import CvTConfig
from longshort.models.vil import ViLConfig
from longshort.nn.spec import Full

if TYPE_CHECKING:  # rich is not part of the core install
    from rich.console import Console

OUT = Path("out/bench_vision.json")
LATENCY = 32  # images at once when latency is measured
CLASSES = 1000
Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Row:
    """One model on images of one size. Times are of a CUDA graph; failure: why there are none."""

    case: str
    size: int
    model: str
    what: str  # "inference" or "training"
    batch: int
    ms: float | None = None
    eager_ms: float | None = None
    gib: float | None = None
    failure: str = ""

    @property
    def per_second(self) -> float | None:
        return None if self.ms is None else 1e3 * self.batch / self.ms

    @property
    def ns_per_pixel(self) -> float | None:
        return None if self.ms is None else 1e6 * self.ms / (self.batch * self.size**2)


@dataclass(frozen=True)
class Case:
    """A family of models at one size. The first is what the others are compared with."""

    family: str
    size: int
    batch: int  # images of a training step

    @property
    def name(self) -> str:
        return f"{self.family}, {self.size}²"

    def makers(self) -> Mapping[str, Make]:
        return vils(self.size) if self.family == "ViL" else cvts(self.size)

    def measure(self, repeats: int, device: torch.device, compiled: bool) -> Iterator[Row]:
        for model, make in self.makers().items():
            for what, batch in (("inference", LATENCY), ("training", self.batch)):
                row = Row(self.name, self.size, model, what, batch)
                try:
                    yield time_model(row, make, repeats, device, compiled)
                except (torch.OutOfMemoryError, RuntimeError) as error:
                    yield replace(row, failure=str(error).splitlines()[0][:200])
                gc.collect()
                with suppress(RuntimeError):
                    torch.cuda.empty_cache()


def vils(size: int) -> Mapping[str, Make]:
    """Full attention in all stages has absolute positions, for with biases PyTorch has no flash kernels."""
    layout: ViLConfig = replace(vil.PRESETS["medium_384" if size == 384 else "medium"], size=(size, size))
    full = tuple(replace(s, attention=Full(), positions="absolute") for s in layout.stages)
    makers: dict[str, Make] = {
        "ViL-medium, full attention": replace(layout, stages=full).build,
        "ViL-LS-medium": layout.build,
        "ViL-LS-medium, everywhere": layout.everywhere().build,
    }
    if (swin := timm_swin(size)) is not None:
        makers["Swin-S (timm)"] = swin
    return makers


def cvts(size: int) -> Mapping[str, Make]:
    """Windows and ranks are the paper's for the size, up to where it has any."""
    attentions = cvt.AT_448 if size >= 448 else cvt.AT_384 if size >= 384 else cvt.AT_224
    long_short: CvTConfig = cvt.PRESETS["ls_13"].with_attention(*attentions)
    return {"CvT-13, full attention": cvt.PRESETS["13"].build, "CvT*-LS-13": long_short.build}


def timm_swin(size: int) -> Make | None:
    try:
        import timm
    except Exception:  # timm's own dependencies fail in many ways
        return None
    return lambda: timm.create_model("swin_small_patch4_window7_224", img_size=size)


def time_model(row: Row, make: Make, repeats: int, device: torch.device, compiled: bool) -> Row:
    torch.manual_seed(0)
    model = make().to(device)
    if compiled:
        torch.compiler.reset()
        model.compile(dynamic=False)
    image = torch.randn(row.batch, 3, row.size, row.size, device=device)
    if row.what == "training":
        work = training(model.train(), image)
        step: Step = work.forward_backward
        (eager,) = milliseconds(step, repeats=repeats, device=device)
        mib = peak_mib(step, device)
        work.clear()
        best = graphed(work) if device.type == "cuda" else step
    else:
        step = inference(model.eval(), image)
        (eager,) = milliseconds(step, repeats=repeats, device=device)
        mib = peak_mib(step, device)
        best = captured(step) if device.type == "cuda" else step
    (ms,) = milliseconds(best, repeats=repeats, device=device)
    return replace(row, ms=ms, eager_ms=eager, gib=None if mib is None else mib / 1024)


def training(model: nn.Module, image: Tensor) -> Work:
    labels = torch.randint(0, CLASSES, (len(image),), device=image.device)

    def loss() -> Tensor:
        with torch.autocast(image.device.type, torch.bfloat16):
            return F.cross_entropy(model(image).float(), labels)

    return Work(loss, tuple(model.parameters()), torch.ones((), device=image.device))


def inference(model: nn.Module, image: Tensor) -> Step:
    model = model.to(torch.bfloat16)
    image = image.to(torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(image)

    return step


def captured(step: Step) -> Step:
    """As one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def cases() -> list[Case]:
    """Training steps of about as many pixels at every size."""
    of_vil = [Case("ViL", 224, 128), Case("ViL", 384, 48), Case("ViL", 512, 24), Case("ViL", 1024, 8)]
    of_cvt = [Case("CvT", 224, 128), Case("CvT", 288, 80), Case("CvT", 384, 48), Case("CvT", 448, 32)]
    return of_vil + of_cvt


def bench_vision(
    chosen: Sequence[Case],
    out: Path,
    *,
    repeats: int,
    compiled: bool = False,
    console: Console,
    device: torch.device | str = "cuda",
) -> list[Row]:
    """Measure the cases, print the table; `out` holds at any time what was measured."""
    device = torch.device(device)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for case in chosen:
        console.print(f"measuring: {case.name}", highlight=False)
        for row in case.measure(repeats, device, compiled):
            rows.append(row)
            facts = [asdict(r) | {"images_per_second": r.per_second, "ns_per_pixel": r.ns_per_pixel} for r in rows]
            write_json(out, {"machine": machine_line(device), "compiled": compiled, "rows": facts})
    console.print(machine_line(device), soft_wrap=True, highlight=False)
    console.print(table_of(rows, compiled))
    draw(rows, out.with_suffix(".png"), f"{machine_line(device)}, bf16")
    console.print(f"written to {out} and {out.with_suffix('.png')}", soft_wrap=True, highlight=False)
    return rows


def table_of(rows: Sequence[Row], compiled: bool) -> Any:
    """Ratios are to the first model of a case."""
    from rich.table import Table

    how = "compiled, " if compiled else ""
    table = Table(title=f"bf16, {how}in a CUDA graph; ns a pixel: of an image", title_justify="left")
    for column in ("case", "what", "model", "batch", "eager, ms", "ms", "ratio", "images/s", "ns a pixel", "GiB"):
        table.add_column(column, justify="left" if column in ("case", "what", "model") else "right")
    first: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda r: r.what):
        base = first.setdefault((row.case, row.what), row)
        if row.ms is None or row.per_second is None:
            table.add_row(row.case, row.what, row.model, str(row.batch), "", row.failure[:40], "", "", "", "")
            continue
        ratio = "" if base.ms is None else f"{base.ms / row.ms:.2f}×"
        gib = "" if row.gib is None else f"{row.gib:.1f}"
        eager = "" if row.eager_ms is None else f"{row.eager_ms:.1f}"
        speed, pixel = f"{row.per_second:,.0f}", f"{row.ns_per_pixel:.2f}"
        table.add_row(row.case, row.what, row.model, str(row.batch), eager, f"{row.ms:.1f}", ratio, speed, pixel, gib)
    return table


COLOURS = {"full": "#b0492f", "LS": "#1f5f8b", "everywhere": "#2f8f5b", "Swin": "#8a8a8a"}


def draw(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Time and memory of a training step for one image, over its side: a column for each family."""
    from matplotlib.figure import Figure

    trained = [row for row in rows if row.what == "training" and row.ms is not None]
    families = list(dict.fromkeys(row.case.partition(",")[0] for row in trained))
    measures: dict[str, Callable[[Row], float | None]] = {
        "ms": lambda row: None if row.ms is None else row.ms / row.batch
    }
    if any(row.gib for row in trained):  # which a CPU does not tell
        measures["GiB"] = lambda row: None if row.gib is None else row.gib / row.batch
    if not families:
        return
    figure = Figure(figsize=(5.2 * len(families), 3.8 * len(measures)), layout="constrained")
    grid = figure.subplots(len(measures), len(families), squeeze=False)
    for line, (unit, value) in zip(grid, measures.items(), strict=True):
        for axes, family in zip(line, families, strict=True):
            draw_panel(axes, [row for row in trained if row.case.startswith(f"{family},")], value)
            axes.set_ylabel(f"{unit} a training step, for one image")
            axes.set_title(family, loc="left", fontweight="bold")
    figure.suptitle(f"Training over the size of images ({caption})", x=0.01, ha="left")
    figure.savefig(path, dpi=110)


def draw_panel(axes: Any, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    from matplotlib.ticker import LogLocator, ScalarFormatter

    for model in dict.fromkeys(row.model for row in rows):
        colour = next((c for key, c in reversed(COLOURS.items()) if key in model), "black")
        points = sorted((row.size, value(row)) for row in rows if row.model == model)
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color=colour, label=model)
    axes.set(xscale="log", yscale="log", xlabel="side of the image, pixels")
    sizes = sorted({row.size for row in rows})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    bench_vision(
        named(cases(), given.only), given.out, repeats=given.repeats, compiled=given.compile, console=wide_console()
    )
