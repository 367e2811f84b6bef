"""Ctrl-C and the signal a cluster sends before it takes a machine back, as a wish that a loop asks about."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Left(BaseException):
    """What may be left at any point was left."""


class Stop:
    """Inside, while there is something to save, the first signal is noted, and a second Ctrl-C interrupts at once.
    Before that, while data is read or generated, the first one does."""

    def __init__(self) -> None:
        self.wanted = False
        self.saves = False  # whether a loop is under way, which will ask
        self.leaves = False
        self.before: dict[int, Any] = {}

    @contextmanager
    def leaving(self, may: bool) -> Iterator[None]:
        """Around what need not come to its end, if it `may` be left: a signal then raises Left, one just before too."""
        self.leaves = may
        try:
            if may and self.wanted:
                raise Left
            yield
        finally:
            self.leaves = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        if not self.saves or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        first, self.wanted = not self.wanted, True
        print("stopping after this step; Ctrl-C again stops at once", file=sys.stderr)
        if first and self.leaves:
            raise Left

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
