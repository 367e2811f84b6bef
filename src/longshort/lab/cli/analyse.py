"""What `longshort analyse` does: open models, and draw what is inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from longshort.lab.cli.evaluate import check_output_file, texts_of
from longshort.lab.data.archive import Entry, of_folder
from longshort.lab.data.images import Pictures, evaluation_chunk, normalised
from longshort.lab.data.text import open_text
from longshort.lab.figures.curves import draw_curves
from longshort.lab.figures.gaze import draw_gaze, draw_strip, looks_at, looks_back
from longshort.lab.figures.norms import (
    AT_START,
    PANELS,
    SEED,
    Sample,
    draw_norm_ratios,
    panel_at_start,
    panel_of_model,
)
from longshort.lab.figures.shares import draw_shares, shares_on
from longshort.lab.figures.similarity import draw_similarities, similarities
from longshort.lab.figures.visibility import draw_visibility
from longshort.lab.recipes.charlm import demo as demo_recipe
from longshort.lab.runs.files import write_json
from longshort.lab.runs.log import read_log
from longshort.lab.trained import Trained

LONGEST = 1_024  # characters of a text that is looked at
FIGURES = (".png", ".pdf", ".svg")


def as_figure(out: Path) -> Path:
    """Where a figure goes: a name without an ending gets .png. Numbers may go beside it, into a .json file."""
    if out.suffix.lower() in FIGURES or out.is_dir():  # which check_output_file refuses
        return out
    if out.suffix:
        raise ValueError(f"out must end in {', '.join(FIGURES)}, got {out}")
    return out.with_name(f"{out.name}.png")


def draw(
    what: Literal["visibility", "curves", "attention"],
    names: Sequence[str],
    out: Path,
    *,
    against: Literal["step", "seconds"],
    prompt: Path | None,
) -> None:
    """Write the figure, and say where."""
    check_output_file(out)
    if what == "visibility":
        draw_visibility(out)
    elif what == "curves":
        logs = {short: read_log(Path(name)) for short, name in labels(names).items()}
        missing = [short for short, log in logs.items() if not any("loss" in line for line in log)]
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
    check_output_file(out)
    trained = Trained.open(name).expect("language", "pictures")
    if trained.vision:
        if image is None:
            raise ValueError(f"{name} is a vision model: give it a picture with --image")
        if len(at) not in (0, 2):
            raise ValueError(f"at must be a pixel of the picture, Y X, got {at}")
        model: Any = trained.model()
        view = trained.view(model)
        pixels, size = opened(image, view)
        pixel = (at[0], at[1]) if at else (size[1] // 2, size[0] // 2)
        looks = looks_at(model, normalised(pixels.float() / 255), view.place(size, pixel))
        whose = f"{Path(name).name}, the last block of each stage"
        title = f"Where the patch at pixel ({pixel[0]}, {pixel[1]}) of {image.name} looks\n{whose}"
        draw_gaze(looks, pixels.permute(1, 2, 0).numpy(), out, title=title)
    else:
        if len(at) > 1:
            raise ValueError(f"at must be one number, that of a character, got {at}")
        text = (texts_of(trained, "dev")["dev"] if prompt is None else open_text(prompt))[:LONGEST].tobytes()
        place_in_text = at[0] if at else len(text) - 1
        title = f"Where character {place_in_text} looks"
        draw_strip(looks_back(trained.model(), text, place_in_text), text, out, title=title)
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
    check_output_file(out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    by_model, images = {}, 0
    for label, name in labels(names).items():
        trained = Trained.open(name).expect("pictures")
        model: Any = trained.model(device)
        view = trained.view(model)
        entries = of_folder(data) if data is not None else own_entries(trained)
        every = max(len(entries) // count, 1)  # not all of the first class
        pictures = Pictures(entries[::every][:count], np.zeros(count, np.int64))
        chunk = evaluation_chunk(pictures, np.arange(len(pictures)), view)
        pictures.note(chunk.broken)
        images = len(chunk.which)
        if not images:
            raise ValueError(f"none of {len(pictures)} pictures can be read")
        batches = (normalised(part.to(device).float() / 255) for part in chunk.images.split(16))
        by_model[f"{label}, {view.side}²"] = similarities(model, batches)
    draw_similarities(by_model, out, images=images)
    write_json(out.with_suffix(".json"), by_model)
    print(f"similarity: {out}")


def draw_norms(names: Sequence[str], out: Path, *, prompt: Path | None) -> None:
    """Each named model replaces the untrained one of its kind."""
    check_output_file(out)
    text = Sample("Python's source", python_source()) if prompt is None else Sample(prompt.name, open_text(prompt))
    models = {label: Trained.open(name) for label, name in labels(names).items()}
    panels = []
    for kind in AT_START:
        of_kind = {label: trained for label, trained in models.items() if PANELS[trained.expect(*PANELS).kind] == kind}
        drawn = [panel_of_model(kind, trained, label, text) for label, trained in of_kind.items()]
        panels += drawn or [panel_at_start(kind, text)]
    draw_norm_ratios(panels, out)
    facts = {"seed": SEED, "panels": [panel.facts() for panel in panels]}
    write_json(out.with_suffix(".json"), facts)
    print(f"norms: {out}")


def python_source() -> np.ndarray:
    """Of this machine's standard library, as in the demo."""
    source: np.ndarray = demo_recipe().task.splits.dev
    return source


def own_entries(trained: Trained) -> Sequence[Entry]:
    if trained.run is None:
        raise ValueError(f"{trained.name} does not say what it was trained on: name pictures with --data")
    entries: Sequence[Entry] = trained.task().splits.dev.entries
    return entries


def draw_attention(name: str, out: Path, prompt: Path | None) -> None:
    """On a block as long as the model's memory."""
    trained = Trained.open(name).expect("language")
    text = texts_of(trained, "dev")["dev"] if prompt is None else open_text(prompt)
    shares = shares_on(trained.model(), text, trained.config.memory or 1_024)
    draw_shares(shares, out, title="Where attention goes, by layer")
