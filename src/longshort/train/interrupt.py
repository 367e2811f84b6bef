"""Ctrl-C and the signal a cluster sends before it takes a machine back, as a wish that a loop asks about."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Stop:
    """Inside, while there is something to save, the first signal is noted, and a second Ctrl-C interrupts at once.
    Before that, while data is read or generated, the first one does."""

    def __init__(self) -> None:
        self.wanted = False
        self.saves = False  # whether a loop is under way, which will ask
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others cannot set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        if not self.saves or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True
        print("stopping after this step, and its evaluation if one is due; Ctrl-C again stops at once", file=sys.stderr)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
