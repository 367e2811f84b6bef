"""What `longshort convert` does on a terminal."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from longshort.data.text import open_text
from longshort.models.encoder import MISSING
from longshort.train.checkpoint import write_whole

if TYPE_CHECKING:  # transformers is not part of the core install
    from longshort.models.convert import Moved


def convert(checkpoint: str, out: Path, *, text: Path | None, **settings: Any) -> None:
    """Write the long-short model as a whole or not at all, and print how far its hidden states moved."""
    if find_spec("transformers") is None:
        raise ImportError(MISSING)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: give another --out, or remove it")
    given = None if text is None else open_text(text).tobytes().decode(errors="replace")
    from transformers.utils.logging import disable_progress_bar

    from longshort.models import convert

    disable_progress_bar()
    with Console(stderr=True).status(f"converting {checkpoint}"):
        found = convert.convert(checkpoint, text=given, **settings)
    unfinished = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    found.save(unfinished)
    write_whole(unfinished / "moved.json", json.dumps([asdict(each) for each in found.moved], indent=1).encode())
    unfinished.replace(out)
    console = Console()
    console.print(table(found.moved))
    console.print(f"{out}: reads {settings['max_length']:,} tokens", soft_wrap=True, highlight=False)


def table(moved: tuple[Moved, ...]) -> Table:
    """A line for each layer, since there may be many."""
    made = Table(title="How far hidden states moved from the original's", title_justify="left")
    made.add_column("after layer", justify="right")
    for each in moved:
        made.add_column(f"texts of {each.tokens:,} tokens", justify="right")
    for layer, shares in enumerate(zip(*(each.layers for each in moved), strict=True), 1):
        made.add_row(str(layer), *(f"{100 * share:.1f} %" for share in shares))
    made.add_section()
    made.add_row("cosine", *(f"{each.cosine:.3f}" for each in moved))
    made.add_row("cosine, CLS", *(f"{each.cls:.3f}" for each in moved))
    return made
