"""Learning curves of runs, from their logs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("#2f6db5", "#d1662a", "#4a8f5a", "#8a5bb0")
STYLES = ("-", "--", ":", "-.")  # of levels
Log = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Measure:
    """What is drawn of a log: training losses, in nats there, times `scale`; evaluations by their name; their unit."""

    on_dev: str
    unit: str
    scale: float = 1.0


BITS = Measure("bpc", "bits per character", 1 / math.log(2))
NATS = Measure("dev_loss", "cross entropy in nats")


def draw_curves(
    logs: Mapping[str, Log],
    path: Path,
    *,
    title: str | None = None,
    against: str = "step",
    lines: Mapping[str, float] | None = None,
) -> None:
    """Write a PNG of bits per character, or of the cross entropy of classifiers: a line for training, points for
    the development set, of each run.

    The height leaves out the first tenth; of several runs the first quarter, whose fall leaves no room for differences.
    against: "step" or "seconds".  lines: levels to compare with, by name.
    """
    from matplotlib.figure import Figure  # without pyplot a figure needs no display and is drawn by Agg

    measure = measure_of(logs)
    figure = Figure(figsize=(8, 5.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    lowest, highest, skip = math.inf, 0.0, 4 if len(logs) > 1 else 10
    for colour, (name, log) in zip(COLOURS * len(logs), logs.items(), strict=False):
        training = [(place(log, line, against), line["loss"] * measure.scale) for line in log if "loss" in line]
        evaluations = [(place(log, line, against), line[measure.on_dev]) for line in log if measure.on_dev in line]
        axes.plot(*zip(*training, strict=True), color=colour, linewidth=1.4, alpha=0.75, label=f"{name}, training")
        if evaluations:
            axes.plot(*zip(*evaluations, strict=True), "o-", color=colour, markersize=4, label=f"{name}, development")
        settled = [y for points in (training, evaluations) for _, y in points[len(points) // skip :]]
        settled = [y for y in settled if math.isfinite(y)]
        lowest, highest = min([lowest, *settled]), max([highest, *settled])
    for style, (name, level) in zip(STYLES * len(lines or {}), (lines or {}).items(), strict=False):
        axes.axhline(level, color="#5c6672", linestyle=style, linewidth=1.2, label=f"{name} {level:.2f}")
        lowest, highest = min(lowest, level), max(highest, level)
    room = 0.06 * (highest - lowest) or 0.1
    axes.set(xlabel=against, ylabel=measure.unit, ylim=(lowest - room, highest + room))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(color="#e3e6ea")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    title = f"{measure.unit[0].upper()}{measure.unit[1:]} while training" if title is None else title
    axes.set_title(title, loc="left", fontsize=12)
    figure.savefig(path)


def draw_accuracies(logs: Mapping[str, Log], path: Path, *, title: str) -> None:
    """Write a PNG of what evaluations found, in %, over steps and over minutes: equal work, and equal time."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    for axes, (against, unit, label) in zip(
        figure.subplots(1, 2, sharey=True), (("step", 1.0, "steps"), ("seconds", 60.0, "minutes")), strict=True
    ):
        for colour, (name, log) in zip(COLOURS * len(logs), logs.items(), strict=False):
            evaluations = [
                (place(log, line, against) / unit, 100 * line["accuracy"]) for line in log if "accuracy" in line
            ]
            if evaluations:
                axes.plot(*zip(*evaluations, strict=True), "o-", color=colour, markersize=4, label=name)
        axes.set(xlabel=label, xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=against == "step"))
        axes.grid(color="#e3e6ea")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("accuracy, %")
    figure.axes[1].legend(frameon=False, loc="lower right")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.savefig(path)


def measure_of(logs: Mapping[str, Log]) -> Measure:
    """Language models' unless all are others."""
    others = {name for name, log in logs.items() if any(NATS.on_dev in line for line in log)}
    if others and len(others) < len(logs):
        raise ValueError(f"{', '.join(sorted(others))} and the others are of different kinds: draw them apart")
    return NATS if others else BITS


def place(log: Log, line: Mapping[str, float], against: str) -> float:
    """Where a line stands; one that does not know its time stands where the training line of its step does."""
    if against in line:
        return line[against]
    return next((other[against] for other in reversed(log) if against in other and other["step"] <= line["step"]), 0.0)
