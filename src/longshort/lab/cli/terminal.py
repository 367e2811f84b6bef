"""What the commands do on a terminal: judge a model, let it write, draw it."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from longshort.lab.figures.curves import draw_curves
from longshort.lab.figures.gaze import draw_gaze, draw_strip, looks_at, looks_back
from longshort.lab.figures.norms import AT_START, SEED, Sample, draw_norm_ratios, kind_of, panel_at_start, panel_of_model
from longshort.lab.figures.shares import draw_shares, shares_on
from longshort.lab.figures.similarity import draw_similarities, similarities
from longshort.lab.figures.visibility import draw_visibility
from longshort.lab.data.archive import Entry, of_folder
from longshort.lab.data.benchmarks import SEVERITIES, Benchmarks
from longshort.lab.data.images import Middle, Pictures, judged_chunk
from longshort.lab.data.text import open_text
from longshort.lab.trained import (
    classifies,
    evaluate,
    find_model,
    find_run,
    load_model,
    load_trained,
    moved,
    named_if_missing,
    protocol_of,
    task_of,
    texts_of,
    warn_if_changed,
    work,
)
from longshort.generate import Sampling, generate
from longshort.lab.trained.judge import sets_of, share_found
from longshort.lab.recipes.charlm import demo as demo_recipe
from longshort.lab.trained.robustness import (
    NAMES,
    PAPER,
    ROBUSTNESS,
    SETS,
    Found,
    Judge,
    is_vision,
    load_vision,
    per_cent,
    robustness_line,
)
from longshort.lab.tasks.augment import normalised
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.tasks.language import LanguageModelling
from longshort.lab.evaluate.measures import corruption_errors
from longshort.lab.runs.checkpoints import write_whole
from longshort.lab.runs.log import read_log
from longshort.lab.train.processes import Processes

Which = Literal["best", "last"]
LONGEST = 1_024  # characters of a text that is looked at


def judge(
    name: str,
    *,
    split: Literal["dev", "test", "both"],
    kind: Literal["paper", "fast"],
    corpus: str | None,
    data: Path | None,
    text: Path | None,
    context: int,
    step: int,
    batch: int | None,
    which: Which,
    compile: bool,
    out: Path | None,
    cpu: bool,
) -> dict[str, float]:
    """Print, and write to `out`, the bits per character of each text, and by which protocol they were found."""
    if text is not None and (corpus is not None or data is not None):
        raise ValueError("text is judged as a whole: give no corpus or data with it")
    make_room(out)
    processes = Processes("auto", cpu=cpu)
    console = Console(stderr=True, quiet=not processes.first)
    name = find_model(name, which)  # once: a training that goes on may make a better one
    model = load_model(name, processes.device)
    if compile:
        model.compile(dynamic=None if model.config.memory is None else False)  # lengths that grow are not one shape
    texts = texts_of(name, split, data, corpus) if text is None else {str(text): open_text(text)}
    protocol = protocol_of(kind, processes.device.type, batch, context, step)
    bound = model.config.memory
    memory = "no bound on the cache" if bound is None else f"read in blocks of {bound:,} with a cache of {bound:,}"
    told = f"{name}, {processes.precision}, {protocol}, {memory}"
    console.print(told, soft_wrap=True, highlight=False)
    found = {}
    for part, content in texts.items():
        began = time.monotonic()
        with Progress(console=console) as progress:
            line = progress.add_task(part, total=work(content, protocol) / processes.count)
            found[part], count = evaluate(model, content, protocol, processes, partial(progress.advance, line))
        if processes.first:
            seconds = time.monotonic() - began
            print(f"{part}: {found[part]:.4f} bits per character ({count:,} characters, {seconds:.0f} s)", flush=True)
    if out is not None and processes.first:
        facts = {
            "model": name,
            "protocol": f"{protocol}, {memory}",
            "precision": processes.precision,
        }
        write_whole(out, json.dumps({**facts, "bits_per_character": found}, indent=1).encode())
    return found


def make_room(out: Path | None) -> None:
    """For a file that is written after the work: what keeps it from that is told before."""
    if out is not None:
        if out.is_dir():
            raise ValueError(f"out must be a file, and {out} is a folder")
        out.parent.mkdir(parents=True, exist_ok=True)


FIGURES = (".png", ".pdf", ".svg")


def as_figure(out: Path) -> Path:
    """Where a figure goes: a name without an ending gets .png. Numbers may go beside it, into a .json file."""
    if out.suffix.lower() in FIGURES or out.is_dir():  # which make_room refuses
        return out
    if out.suffix:
        raise ValueError(f"out must end in {', '.join(FIGURES)}, got {out}")
    return out.with_name(f"{out.name}.png")


def is_classifier(name: str) -> bool:
    return classifies(task_of(name))


def judge_classifier(
    name: str,
    *,
    split: Literal["dev", "test", "both"],
    data: Path | None,
    which: Which,
    out: Path | None,
    cpu: bool,
) -> dict[str, float]:
    """Print, and write to `out`, the share of labels found of each set of examples."""
    make_room(out)
    processes = Processes("auto", cpu=cpu)
    console = Console(stderr=True, quiet=not processes.first)
    name = find_model(name, which)
    run, model = load_trained(name, processes.device)
    task = run.task
    assert classifies(task)
    if data is not None:
        task = replace(task, source=moved(task.source, data))
    with named_if_missing(name, data):
        warn_if_changed(name, task.fingerprint())
    console.print(f"{name}, {processes.precision}, {task.source.name}", soft_wrap=True, highlight=False)
    found = {}
    for part, items in sets_of(task, split).items():
        with Progress(console=console) as progress:
            line = progress.add_task(part, total=len(items) / processes.count)
            right, count = share_found(task, model, items, processes, partial(progress.advance, line))
        found[part] = right / count
        if processes.first:
            print(f"{part}: {100 * found[part]:.2f} % ({int(right):,} of {int(count):,})", flush=True)
    if out is not None and processes.first:
        facts = {"model": name, "data": task.source.name, "precision": processes.precision, "accuracy": found}
        write_whole(out, json.dumps(facts, indent=1).encode())
    return found


def judge_vision(
    name: str,
    *,
    on: Sequence[str],
    data: Path | None,
    corrupt: Path | None,
    side: int | None,
    crop: float | None,
    batch: int | None,
    which: Which,
    out: Path | None,
    cpu: bool,
) -> Found:
    """Print, and write to `out`, what a vision model finds of the sets named, or of its own development set."""
    make_room(out)
    processes = Processes("auto", cpu=cpu)
    console = Console(stderr=True, quiet=not processes.first)
    model, view = load_vision(name, processes.device, which)
    if side is not None or crop is not None:
        view = Middle(side or view.side, crop or 1.0)
    seen = f"the middle {100 * view.share:g} % of pictures at {view.side}²" if isinstance(view, Middle) else str(view)
    console.print(f"{name}, {processes.precision}, {seen}", soft_wrap=True, highlight=False)
    wanted: list[Any] = list(ROBUSTNESS if "robustness" in on else [each for each in SETS if each in on])
    with Progress(console=console) as progress:
        lines: dict[str, Any] = {}

        def tell(part: str, done: int, of: int) -> None:
            line = lines[part] = lines[part] if part in lines else progress.add_task(part, total=of)
            progress.update(line, completed=done, visible=done < of)

        judge = Judge(model, view, processes, batch or 128, tell)
        if corrupt is not None:
            found = judge.judge_corrupted(corrupt)
        elif wanted:
            if data is None:
                raise ValueError("say where the sets are with --data")
            found = judge.judge(wanted, Benchmarks(data))
        else:
            found = own_set(judge, name, data)
    if processes.first:
        tell_found(name, model, found, table="robustness" in on)
        if out is not None:
            facts = {"model": name, "precision": processes.precision, "view": str(view), **found.facts()}
            write_whole(out, json.dumps(facts, indent=1).encode())
    return found


def own_set(judge: Judge, name: str, data: Path | None) -> Found:
    """The development pictures of the model's own training, or those of `data`."""
    run = find_run(name)
    if data is None and (run is None or not isinstance(run.task, ImageClassification)):
        raise ValueError(f"{name} does not say what it was trained on: say where pictures are with --data")
    if data is not None:
        pictures, classes = Benchmarks(data).validation()
    else:
        assert run is not None and isinstance(run.task, ImageClassification)
        with named_if_missing(name, data):
            splits = run.task.splits
        pictures, classes = splits.dev, splits.classes
    judge.check(classes)
    return Found({"dev": judge.share("dev", pictures)}, broken=len(pictures.broken))


def tell_found(name: str, model: nn.Module, found: Found, *, table: bool) -> None:
    console = Console(width=max(Console().width, 120))
    for each, share in found.accuracy.items():
        console.print(f"{NAMES.get(each, each)}: {100 * share:.2f} %", highlight=False)
    if found.corruptions:
        relative = corruption_errors(found.corruptions)
        errors = Table(title="Errors in % by severity, and relative to AlexNet's (CE)", title_justify="left")
        for column in ("corruption", *map(str, SEVERITIES), "CE"):
            errors.add_column(column, justify="left" if column == "corruption" else "right")
        for corruption, shares in found.corruptions.items():
            cells = [per_cent(share) for share in shares]
            errors.add_row(corruption, *cells, *[""] * (5 - len(cells)), per_cent(relative[corruption]))
        console.print(errors)
        missing = "" if found.mce is not None else "none: not all corruptions and severities are there"
        console.print(f"mCE: {per_cent(found.mce)}{missing}", highlight=False)
    if table:
        lines = Table(title="Robustness, in %; the paper's Table 6 above ours", title_justify="left")
        for column in ("model", "M parameters", "ImageNet", "C, mCE", "A", "R", "9, mixed-same", "9, mixed-rand"):
            lines.add_column(column, justify="left" if column == "model" else "right")
        for other, figures in PAPER.items():
            lines.add_row(f"{other} (paper)", *(f"{figure:g}" for figure in figures))
        lines.add_row(*robustness_line(name, sum(p.numel() for p in model.parameters()), found))
        console.print(lines)
    if found.broken:
        console.print(f"{found.broken:,} pictures could not be read and do not count", highlight=False)


def write(
    name: str, prompt: bytes, count: int, sampling: Sampling, *, seed: int | None, which: Which, cpu: bool
) -> None:
    """Print the prompt and what follows it, as it comes; then, on stderr, the speed.

    Bytes that make no UTF-8, and characters that the terminal does not have, come out as signs for that.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    model = load_model(name, device, which).to(torch.bfloat16 if half else torch.float32)
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def tell(content: bytes, final: bool = False) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        text = characters.decode(content, final)
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()

    writing = generate(model, prompt or b"\n", count, sampling, seed=seed)
    tell(prompt)
    done, began = 0, time.monotonic()
    try:
        for byte in writing:
            if done == 0:
                began = time.monotonic()  # reading the prompt is not writing
            tell(bytes([byte]))
            done += 1
    except KeyboardInterrupt:
        pass
    seconds = time.monotonic() - began
    tell(b"\n", final=True)
    print(f"{done} characters, {max(done - 1, 0) / max(seconds, 1e-9):.1f} a second", file=sys.stderr)


def draw(
    what: Literal["visibility", "curves", "attention"],
    names: Sequence[str],
    out: Path,
    *,
    against: Literal["step", "seconds"],
    prompt: Path | None,
) -> None:
    """Write the figure, and say where."""
    make_room(out)
    if what == "visibility":
        draw_visibility(out)
    elif what == "curves":
        logs = {short: read_log(Path(name)) for short, name in labels(names).items()}
        missing = [name for name in names if not any("loss" in line for line in read_log(Path(name)))]
        if missing or not names:
            raise ValueError(f"no log of a run in {', '.join(missing)}" if names else "give folders of runs to draw")
        draw_curves(logs, out, against=against)
    else:
        draw_attention(one_of(names), out, prompt)
    print(f"{what}: {out}")


def labels(names: Sequence[str]) -> dict[str, str]:
    """What each is called in a figure: the name of its folder, or where that is another's too, all of its path."""
    short = [Path(name).name for name in names]
    return {name if short.count(own) > 1 else own: name for own, name in zip(short, names, strict=True)}


def one_of(names: Sequence[str]) -> str:
    if len(names) != 1:
        raise ValueError(f"give one model to look into, got {len(names)}")
    return names[0]


def draw_look(names: Sequence[str], out: Path, *, image: Path | None, prompt: Path | None, at: Sequence[int]) -> None:
    """Of a patch of an image, or of a character of a text."""
    name = one_of(names)
    make_room(out)
    if is_vision(name):
        if image is None:
            raise ValueError(f"{name} is a vision model: give it a picture with --image")
        model, view = load_vision(name, torch.device("cpu"), "best")
        assert isinstance(view, Middle)
        pixels, size = opened(image, view)
        if len(at) not in (0, 2):
            raise ValueError(f"at must be a pixel of the picture, Y X, got {at}")
        pixel = (at[0], at[1]) if at else (size[1] // 2, size[0] // 2)
        looks = looks_at(model, normalised(pixels.float() / 255), view.place(size, pixel))
        whose = f"{Path(name).name}, the last block of each stage"
        title = f"Where the patch at pixel ({pixel[0]}, {pixel[1]}) of {image.name} looks\n{whose}"
        draw_gaze(looks, pixels.permute(1, 2, 0).numpy(), out, title=title)
    else:
        if len(at) > 1:
            raise ValueError(f"at must be one number, that of a character, got {at}")
        text = (texts_of(name, "dev")["dev"] if prompt is None else open_text(prompt))[:LONGEST].tobytes()
        place_in_text = at[0] if at else len(text) - 1
        found = looks_back(load_model(name, "cpu"), text, place_in_text)
        draw_strip(found, text, out, title=f"Where character {place_in_text} looks")
    print(f"look: {out}")


def opened(path: Path, view: Any) -> tuple[torch.Tensor, tuple[int, int]]:
    """Bytes [3, S, S] of a picture, as a model sees it; and its own width and height."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            size = image.size  # before it may be decoded smaller
            return torch.from_numpy(view(image)), size
    except UnidentifiedImageError:
        raise ValueError(f"{path} is no picture that can be read") from None


def draw_similarity(names: Sequence[str], out: Path, *, data: Path | None, count: int) -> None:
    if not names or count < 1:
        raise ValueError(f"give vision models to compare and at least one picture, got {len(names)} and {count}")
    make_room(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found, images = {}, 0
    for label, name in labels(names).items():
        if not is_vision(name):
            raise ValueError(f"{name} is no vision model")
        model, view = load_vision(name, device, "best")
        entries = of_folder(data) if data is not None else own_entries(name)
        every = max(len(entries) // count, 1)  # not all of the first class
        pictures = Pictures(entries[::every][:count], np.zeros(count, np.int64))
        chunk = judged_chunk(pictures, np.arange(len(pictures)), view)
        pictures.note(chunk.broken)
        images = len(chunk.which)
        if not images:
            raise ValueError(f"none of {len(pictures)} pictures can be read")
        batches = (normalised(part.to(device).float() / 255) for part in chunk.images.split(16))
        found[f"{label}, {view.side}²"] = similarities(model, batches)
    draw_similarities(found, out, images=images)
    write_whole(out.with_suffix(".json"), json.dumps(found, indent=1).encode())
    print(f"similarity: {out}")


def draw_norms(names: Sequence[str], out: Path, *, prompt: Path | None) -> None:
    """A given model stands in the place of the one of its kind that would be drawn without it."""
    make_room(out)
    text = Sample("Python's source", python_source()) if prompt is None else Sample(prompt.name, open_text(prompt))
    kinds = {label: kind_of(name) for label, name in labels(names).items()}
    panels = []
    for kind in AT_START:
        given = [(label, name) for label, name in labels(names).items() if kinds[label] == kind]
        panels += [panel_of_model(kind, name, label, text) for label, name in given] or [panel_at_start(kind, text)]
    draw_norm_ratios(panels, out)
    facts = {"seed": SEED, "panels": [panel.facts() for panel in panels]}
    write_whole(out.with_suffix(".json"), json.dumps(facts, indent=1).encode())
    print(f"norms: {out}")


def python_source() -> np.ndarray:
    """Of this machine's standard library, as in the demo."""
    task = demo_recipe().task
    assert isinstance(task, LanguageModelling)
    return task.splits.dev


def own_entries(name: str) -> Sequence[Entry]:
    run = find_run(name)
    if run is None or not isinstance(run.task, ImageClassification):
        raise ValueError(f"{name} does not say what it was trained on: name pictures with --data")
    with named_if_missing(name, None):
        return run.task.splits.dev.entries


def draw_attention(name: str, out: Path, prompt: Path | None) -> None:
    """On a block as long as the model's memory."""
    model = load_model(name, "cpu")
    text = texts_of(name, "dev")["dev"] if prompt is None else open_text(prompt)
    shares = shares_on(model, text, model.config.memory or 1_024)
    draw_shares(shares, out, title="Where attention goes, by layer")
