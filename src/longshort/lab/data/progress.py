"""A progress bar over bytes, on stderr, where rich is installed; nothing where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int], None]  # told how many bytes are done by now


def silent(done: int) -> None:
    """A bar that nobody sees."""


@contextmanager
def progress_bar(doing: str, total: int, *, show: bool = True) -> Iterator[Tell]:
    """Bytes, speed and time left of what goes on inside."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ImportError:  # rich is not part of the core install
        yield silent
        return
    text = TextColumn("{task.description}", markup=False)  # a name may have brackets
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.update(task, completed=done)
