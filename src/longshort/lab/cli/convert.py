"""What `longshort convert` does on a terminal."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from longshort.lab.data.text import open_text
from longshort.lab.runs.files import write_json
from longshort.lab.trained.weights import check_if_checkpoint

if TYPE_CHECKING:  # transformers is not part of the core install
    from longshort.hf import Moved


def write_converted(
    checkpoint: str,
    out: Path,
    *,
    max_length: int,
    window: int,
    rank: int,
    global_tokens: int,
    dual_norm: bool,
    eps: float,
    text: Path | None,
    head: str | None,
    classes: int | None,
    seed: int,
) -> None:
    """Write the long-short model as a whole or not at all, and print how far its hidden states moved."""
    from longshort.hf import convert, quiet

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: give another --out, or remove it")
    sample = None if text is None else open_text(text).tobytes().decode(errors="replace")
    check_if_checkpoint(Path(checkpoint))
    with quiet(), Console(stderr=True).status(f"converting {checkpoint}"):
        converted = convert(
            checkpoint,
            max_length=max_length,
            window=window,
            rank=rank,
            global_tokens=global_tokens,
            dual_norm=dual_norm,
            eps=eps,
            text=sample,
            head=head,
            classes=classes,
            seed=seed,
        )
    unfinished = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with quiet():
        converted.save(unfinished)
    write_json(unfinished / "moved.json", [asdict(each) for each in converted.moved])
    unfinished.replace(out)
    console = Console()
    console.print(table(converted.moved))
    console.print(f"{out}: reads {max_length:,} tokens", soft_wrap=True, highlight=False)


def table(moved: tuple[Moved, ...]) -> Table:
    """A line for each layer, since there may be many."""
    lines = Table(title="How far hidden states moved from the original's", title_justify="left")
    lines.add_column("after layer", justify="right")
    for each in moved:
        lines.add_column(f"texts of {each.tokens:,} tokens", justify="right")
    for layer, shares in enumerate(zip(*(each.layers for each in moved), strict=True), 1):
        lines.add_row(str(layer), *(f"{100 * share:.1f} %" for share in shares))
    lines.add_section()
    lines.add_row("cosine", *(f"{each.cosine:.3f}" for each in moved))
    lines.add_row("cosine, CLS", *(f"{each.cls:.3f}" for each in moved))
    return lines
