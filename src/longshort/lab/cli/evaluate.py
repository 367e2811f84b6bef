"""What `longshort evaluate` does: open a model, list evaluators for its kind, run them, print and write the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from longshort.lab.data.benchmarks import SEVERITIES, Benchmarks
from longshort.lab.data.images import Middle
from longshort.lab.data.source import CorpusSource
from longshort.lab.data.splits import Text
from longshort.lab.data.text import open_text
from longshort.lab.evaluate import Advance, Evaluator, Share, evaluate, with_own_names
from longshort.lab.evaluate.bits import BitsPerCharacter, Reading, Windows
from longshort.lab.evaluate.imagenet import (
    NAMES,
    PAPER,
    ROBUSTNESS,
    SETS,
    Robustness,
    Set,
    check_classes,
    corrupted_on_the_way,
    on_sets,
)
from longshort.lab.evaluate.measures import corruption_errors
from longshort.lab.evaluate.pictures import PictureLabels
from longshort.lab.runs.checkpoints import Which
from longshort.lab.runs.files import write_json
from longshort.lab.train.processes import Processes
from longshort.lab.trained import Trained

Split = Literal["dev", "test", "both"]
BATCH = {"paper": {"cuda": 32, "cpu": 1}, "fast": {"cuda": 64, "cpu": 8}}  # enough to fill the device
WORDS = {  # of a metric, how its line reads
    "bpc": "{mean:.4f} bits per character ({count:,} characters, {seconds:.0f} s)",
    "accuracy": "{percent:.2f} % ({total:,} of {count:,})",
    "restored": "{percent:.2f} % of hidden tokens restored ({total:,} of {count:,})",
}


@dataclass(frozen=True)
class Options:
    """Of `longshort evaluate`, as its help describes them."""

    split: Split = "both"
    on: tuple[str, ...] = ()
    corrupt: Path | None = None
    side: int | None = None
    crop: float | None = None
    protocol: Literal["paper", "fast"] = "paper"
    corpus: str | None = None
    data: Path | None = None
    text: Path | None = None
    context: int = 32_768
    step: int = 512
    batch: int | None = None
    which: Which = "best"
    compile: bool = False
    out: Path | None = None
    cpu: bool = False


def evaluate_model(name: str, options: Options) -> dict[str, Any]:
    """Returns what is printed, and written to `out`."""
    check_output_file(options.out)
    trained = Trained.open(name, options.which)
    if (options.on or options.corrupt) and not trained.vision:
        raise ValueError(f"{name} is no vision model, which --on and --corrupt are for")
    processes = Processes("auto", cpu=options.cpu)
    facts = evaluation_of(trained, options)(trained, options, processes)
    if options.out is not None and processes.first:
        write_json(options.out, {"model": trained.name, "precision": processes.precision, **facts})
    return facts


def evaluation_of(trained: Trained, options: Options) -> Callable[[Trained, Options, Processes], dict[str, Any]]:
    """What the task of its run lists, unless the model is of a kind for which the options choose."""
    task = None if trained.run is None else trained.run.task
    if trained.vision and (task is None or hasattr(task, "view") or options.on or options.corrupt or options.data):
        return evaluate_pictures
    if trained.kind == "language" and (task is None or task.metric == "bpc"):
        return evaluate_language
    return evaluate_task


def evaluate_language(trained: Trained, options: Options, processes: Processes) -> dict[str, Any]:
    if options.text is not None and (options.corpus is not None or options.data is not None):
        raise ValueError("text is evaluated as a whole: give no corpus or data with it")
    model = trained.model(processes.device)
    memory = trained.config.memory
    if options.compile:
        model.compile(dynamic=None if memory is None else False)  # lengths that grow are not one shape
    if options.text is not None:
        texts = {str(options.text): open_text(options.text)}
    else:
        texts = texts_of(trained, options.split, options.data, options.corpus)
    protocol = protocol_of(options, processes.device.type)
    cache = "no bound on the cache" if memory is None else f"read in blocks of {memory:,} with a cache of {memory:,}"
    evaluators = (BitsPerCharacter(part, text, protocol, memory) for part, text in texts.items())
    results = run(trained, f"{protocol}, {cache}", evaluators, model, processes)
    bits = {part: shares["bpc"].mean for part, shares in results.items()}
    return {"protocol": f"{protocol}, {cache}", "bits_per_character": bits}


def protocol_of(options: Options, device: str) -> Windows | Reading:
    batch = BATCH[options.protocol]["cuda" if device == "cuda" else "cpu"] if options.batch is None else options.batch
    return (
        Windows(options.context, options.step, batch)
        if options.protocol == "paper"
        else Reading(options.context, batch)
    )


def texts_of(trained: Trained, split: Split, data: Path | None = None, corpus: str | None = None) -> dict[str, Text]:
    """The development and test text of the model's own training, or of a corpus. data: where the corpus is now."""
    if corpus is not None:
        splits = CorpusSource(corpus, data).splits()
    elif trained.run is None or trained.kind != "language":
        options = "evaluate: --corpus or --text, analyse: --prompt"
        raise FileNotFoundError(f"{trained.name} does not say what text it was trained on: name one ({options})")
    else:
        splits = trained.task(data).splits
    return {part: getattr(splits, part) for part in (("dev", "test") if split == "both" else (split,))}


def evaluate_task(trained: Trained, options: Options, processes: Processes) -> dict[str, Any]:
    """Whatever the task of its run lists."""
    task = trained.task(options.data)
    evaluators = listed(trained, task, options.split)
    model = trained.model(processes.device)
    data = getattr(getattr(task, "source", None), "name", type(task).__name__)  # a task of your own may have neither
    results = run(trained, data, evaluators, model, processes)
    metrics = dict.fromkeys(metric for shares in results.values() for metric in shares)
    by_metric = {m: {name: shares[m].mean for name, shares in results.items() if m in shares} for m in metrics}
    return {"data": data, **by_metric}


def listed(trained: Trained, task: Any, split: Split) -> list[Evaluator]:
    """What the task lists for a split, or for both."""
    splits = ("dev", "test") if split == "both" else (split,)
    evaluators = [evaluator for each in splits for evaluator in task.evaluators(each)]
    if not evaluators:
        raise ValueError(f"{trained.name} has nothing to evaluate on the {split} set")
    return evaluators


def evaluate_pictures(trained: Trained, options: Options, processes: Processes) -> dict[str, Any]:
    model = trained.model(processes.device)
    view = trained.view(model)
    if options.side is not None or options.crop is not None:
        view = Middle(options.side or view.side, options.crop or 1.0)
    seen = f"the middle {100 * view.share:g} % of pictures at {view.side}²" if isinstance(view, Middle) else str(view)
    evaluators = list(picture_evaluators(trained, options, view, getattr(model, "num_classes", None)))
    results = run(trained, seen, evaluators, model, processes, quiet=True)
    robustness = Robustness.of(results, [evaluator.pictures for evaluator in evaluators])
    if processes.first:
        print_robustness(trained.name, model, robustness, table="robustness" in options.on)
    return {"view": str(view), **robustness.facts()}


def picture_evaluators(trained: Trained, options: Options, view: Any, classes: int | None) -> Iterable[PictureLabels]:
    """Of the sets that were named, or those that the task of its run lists, with another view and batch if they were
    asked for."""
    batch = options.batch or 128
    wanted: list[Set] = list(
        ROBUSTNESS if "robustness" in options.on else [each for each in SETS if each in options.on]
    )
    if options.corrupt is not None:
        return corrupted_on_the_way(options.corrupt, view, batch, classes)
    if wanted:
        if options.data is None:
            raise ValueError("say where the sets are with --data")
        return on_sets(wanted, Benchmarks(options.data), view, batch, classes)
    if options.data is not None:
        pictures, names = Benchmarks(options.data).validation()
    elif trained.run is None:
        raise ValueError(f"{trained.name} does not say what it was trained on: say where pictures are with --data")
    else:
        task: Any = trained.task()
        check_classes(classes, task.splits.classes)
        pictured: list[Any] = listed(trained, task, options.split)
        return [replace(each, view=view, batch=options.batch or each.batch) for each in pictured]
    check_classes(classes, names)
    return [PictureLabels("validation", pictures, view, batch)]


def run(
    trained: Trained,
    how: str,
    evaluators: Iterable[Evaluator],
    model: nn.Module,
    processes: Processes,
    *,
    quiet: bool = False,
) -> dict[str, dict[str, Share]]:
    """Each evaluator with a bar, and unless quiet its line as soon as it is done."""
    console = Console(stderr=True, quiet=not processes.first)
    console.print(f"{trained.name}, {processes.precision}, {how}", soft_wrap=True, highlight=False)
    results: dict[str, dict[str, Share]] = {}
    for evaluator in with_own_names(evaluators):
        began = time.monotonic()
        with Progress(console=console, transient=quiet) as bars:

            def progress(name: str, size: float, bars: Progress = bars) -> Advance:
                line = bars.add_task(name, total=size)
                return lambda done: bars.advance(line, done)

            results |= evaluate(model, [evaluator], processes, progress)
        if processes.first and not quiet:
            print_shares(evaluator.name, results[evaluator.name], time.monotonic() - began)
    return results


def print_shares(name: str, shares: Mapping[str, Share], seconds: float) -> None:
    for metric in printed_metrics(shares):
        (total, count), mean = shares[metric], shares[metric].mean
        words = WORDS.get(metric, f"{metric} {{mean:.4f}}")
        line = words.format(mean=mean, percent=100 * mean, total=int(total), count=int(count), seconds=seconds)
        print(f"{name}: {line}", flush=True)


def printed_metrics(shares: Mapping[str, Share]) -> list[str]:
    """The metrics to print: those in WORDS, or all if there is none of them, as for a task of your own."""
    return [metric for metric in WORDS if metric in shares] or list(shares)


def check_output_file(out: Path | None) -> None:
    """For a file that is written after the work: what keeps it from that is told before."""
    if out is not None:
        if out.is_dir():
            raise ValueError(f"out must be a file, and {out} is a folder")
        out.parent.mkdir(parents=True, exist_ok=True)


def print_robustness(name: str, model: nn.Module, robustness: Robustness, *, table: bool) -> None:
    console = Console(width=max(Console().width, 120))
    for each, share in robustness.accuracy.items():
        console.print(f"{NAMES.get(each, each)}: {100 * share:.2f} %", highlight=False)
    if robustness.corruptions:
        relative = corruption_errors(robustness.corruptions)
        errors = Table(title="Errors in % by severity, and relative to AlexNet's (CE)", title_justify="left")
        for column in ("corruption", *map(str, SEVERITIES), "CE"):
            errors.add_column(column, justify="left" if column == "corruption" else "right")
        for corruption, shares in robustness.corruptions.items():
            cells = [per_cent(share) for share in shares]
            errors.add_row(corruption, *cells, *[""] * (5 - len(cells)), per_cent(relative[corruption]))
        console.print(errors)
        missing = "" if robustness.mce is not None else "none: not all corruptions and severities are there"
        console.print(f"mCE: {per_cent(robustness.mce)}{missing}", highlight=False)
    if table:
        lines = Table(title="Robustness, in %; the paper's Table 6 above ours", title_justify="left")
        for column in ("model", "M parameters", "ImageNet", "C, mCE", "A", "R", "9, mixed-same", "9, mixed-rand"):
            lines.add_column(column, justify="left" if column == "model" else "right")
        for other, figures in PAPER.items():
            lines.add_row(f"{other} (paper)", *(f"{figure:g}" for figure in figures))
        lines.add_row(*robustness_row(name, sum(p.numel() for p in model.parameters()), robustness))
        console.print(lines)
    if robustness.broken:
        console.print(f"{robustness.broken:,} pictures could not be read and do not count", highlight=False)


def robustness_row(name: str, parameters: int, robustness: Robustness) -> Sequence[str]:
    """As a line of the paper's table."""
    return [name, f"{parameters / 1e6:.1f}", *map(per_cent, robustness.row())]


def per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
