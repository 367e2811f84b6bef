"""Names of the implementations."""

from __future__ import annotations

from typing import Literal, get_args

Implementation = Literal["auto", "reference", "chunked", "triton"]


def check_implementation(impl: str) -> None:
    if impl not in get_args(Implementation):
        raise ValueError(f"impl must be one of {sorted(get_args(Implementation))}, got {impl!r}")
