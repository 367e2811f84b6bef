"""The command line: `longshort demo` and `longshort bench attention`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

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


def bench(
    what: Literal["attention"],
    /,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: Path = Path("out/bench_attention.json"),
    repeats: int | None = None,
    only: str = "",
    flex: bool = False,
) -> None:
    """Measure speed on this machine. `longshort bench attention`: each layer against full attention.

    On a GPU the operation alone and the memory are measured too, and a figure is drawn beside `out`.

    Args:
        what: what to measure
        device: where to measure; auto takes a GPU if there is one
        out: JSON file for the times and ratios
        repeats: timed runs of each layer, of which the median counts; 5 on a CPU and 20 on a GPU unless given
        only: measure the cases with this in their name
        flex: on a GPU, measure FlexAttention on the same mask too; it compiles for up to half a minute a case
    """
    if repeats is not None and repeats < 1:
        raise SystemExit(refuse(f"repeats must be at least 1, got {repeats}", 2))
    from torch.cuda import is_available

    if device == "cpu" or (device == "auto" and not is_available()):
        bench_cpu(out, only=only, repeats=repeats or 5)
        return
    from longshort.bench.gpu import NO_CUDA, REPEATS, bench_gpu, wide_console
    from longshort.bench.settings import settings

    if not is_available():
        raise SystemExit(refuse(NO_CUDA, 1))
    bench_gpu(chosen(settings(), only), out, repeats=repeats or REPEATS, flex=flex, console=wide_console())


def bench_cpu(out: Path, *, only: str, repeats: int) -> None:
    from rich.console import Console

    from longshort.bench.attention import bench_attention, cases

    bench_attention(chosen(cases(), only), out, repeats=repeats, console=Console())


def chosen(cases: Sequence[Any], only: str) -> list[Any]:
    from longshort.bench.run import named

    try:
        return named(cases, only)
    except ValueError as error:
        raise SystemExit(refuse(str(error), 2)) from None


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
