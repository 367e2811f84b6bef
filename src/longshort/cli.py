"""The command line: `longshort demo` and `longshort bench attention`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Literal

from longshort.version import VERSION

DESCRIPTION = "Long-short attention: see it and time it. `longshort --version` prints the version."


def demo(*, out: Path = Path("out/demo")) -> None:
    """Draw who sees whom, and time long-short against full attention on this machine (under two minutes).

    Args:
        out: folder for the two figures
    """
    from rich.console import Console

    from longshort.bench.demo import demo

    demo(out, console=Console())


def bench(what: Literal["attention"], /, *, out: Path = Path("out/bench_attention.json"), repeats: int = 5) -> None:
    """Measure speed on this machine. `longshort bench attention`: each layer against full attention.

    Args:
        what: what to measure
        out: JSON file for the times and ratios
        repeats: timed runs of each layer, of which the median counts
    """
    if repeats < 1:
        raise SystemExit(refuse(f"repeats must be at least 1, got {repeats}", 2))
    from rich.console import Console

    from longshort.bench.attention import bench_attention, cases

    bench_attention(cases(), out, repeats=repeats, console=Console())


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(VERSION)
        return 0
    for package in ("tyro", "rich", "matplotlib"):
        try:
            import_module(package)
        except ModuleNotFoundError:
            return refuse(f"{package} is not installed; pip install 'longshort[bench]'", 1)
    from tyro.extras import subcommand_cli_from_dict

    try:
        commands: dict[str, Callable[..., None]] = {"demo": demo, "bench": bench}
        subcommand_cli_from_dict(commands, prog="longshort", description=DESCRIPTION, args=arguments)
    except KeyboardInterrupt:
        return refuse("interrupted", 130)
    except OSError as error:
        return refuse(f"cannot write {error.filename}: {error.strerror}" if error.filename else str(error), 1)
    return 0


def refuse(message: str, code: int) -> int:
    print(f"longshort: {message}", file=sys.stderr)
    return code
