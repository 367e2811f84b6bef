"""What every benchmark needs: its cases by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def named(cases: Sequence[T], only: str) -> list[T]:
    """The cases with `only` in their name."""
    found = [case for case in cases if only.casefold() in case.name.casefold()]
    if not found:
        names = "; ".join(case.name for case in cases)
        raise ValueError(f"no case has {only!r} in its name; there are: {names}")
    return found
