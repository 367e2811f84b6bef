"""Checkpoints on the disk: each a folder that is there as a whole or not at all, with a checksum of every file."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from longshort.checksums import META, NAME, DamagedError, checksum, compare, read_meta, with_checksum
from longshort.lab.runs.errors import CheckpointError
from longshort.lab.runs.files import flush_folder, remove_unfinished, write_whole
from longshort.serial import fits

WEIGHTS = "model.safetensors"
KEPT = 2  # the last ones, beside the best
LARGEST = 10**12  # steps: more are no steps
Which = Literal["best", "last"]
FIELDS: dict[str, Any] = {  # of checkpoint.json, those that readers rely on
    "step": int,
    "metrics": dict[str, float],
    "best_step": int | None,
    "best": float,
    "last_loss": float,
    "seconds": float,
    "data": str | None,
}


class Checkpoints:
    """The checkpoints of one run. `step_00000400` is complete as soon as it has this name. Each knows
    the step of the best so far ("best_step").

    folder: where they stand; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:08d}"

    def steps(self) -> list[int]:
        """Of all complete checkpoints, in order."""
        paths = self.folder.glob("step_*") if self.folder.is_dir() else ()
        return sorted(int(path.name[5:]) for path in paths if NAME.fullmatch(path.name))

    def last(self) -> Path | None:
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The best by the metric of its task; the last while none was evaluated."""
        last = self.last()
        if last is None:
            return None
        best_step = read_facts(last)["best_step"]
        path = last if best_step is None else self.path(best_step)
        return path if path.is_dir() else last

    def chosen(self, which: Which) -> Path | None:
        if which not in get_args(Which):
            raise ValueError(f"which must be 'best' or 'last', got {which!r}")
        return self.best() if which == "best" else self.last()

    def unfinished(self, step: int) -> Path:
        return self.folder / f"unfinished_{step:08d}"

    @contextmanager
    def guarded(self, step: int) -> Iterator[None]:
        """Says which checkpoint could not be written, why, and what is left."""
        try:
            yield
        except OSError as error:
            last = self.last()
            left = "no earlier one is there" if last is None else f"the one before it, {last}, is intact"
            raise CheckpointError(
                f"cannot write the checkpoint of step {step} in {self.folder}: {error.strerror or error}; {left}. "
                "Make room or give another folder, then go on with --resume."
            ) from error

    def begin(self, step: int) -> Path:
        """An empty folder to write into."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tidy()
        self.unfinished(step).mkdir()
        return self.unfinished(step)

    def finish(self, step: int, facts: dict[str, Any]) -> Path:
        """Give the folder its name, once all is on the disk; then forget what is too old."""
        folder, path = self.unfinished(step), self.path(step)
        facts = {**facts, "step": step, "files": {p.name: checksum(p) for p in sorted(folder.iterdir())}}
        write(folder / META, with_checksum(facts))
        flush_folder(folder)
        os.rename(folder, path)
        flush_folder(self.folder)
        self.tidy()
        return path

    def amend(self, step: int, changes: dict[str, Any]) -> None:
        """Note something else with a checkpoint."""
        path = self.path(step)
        facts = {**check(path), **changes}
        with self.guarded(step):
            write_whole(path / META, with_checksum(facts))

    def abandon(self, step: int) -> None:
        """Remove what was written of a checkpoint that cannot be finished."""
        shutil.rmtree(self.unfinished(step), ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a killed run left unfinished, and what is too old. The best stays; where the last checkpoint
        cannot say which that is, all stay."""
        steps = self.steps()
        try:
            needed = {*map(self.path, steps[-KEPT:]), self.best()}
        except CheckpointError:
            needed = set(map(self.path, steps))
        for s in steps:
            if self.path(s) not in needed:
                os.rename(self.path(s), self.unfinished(s))  # what is gone in part has no complete name
        for old in self.folder.glob("unfinished_*"):
            old.unlink() if old.is_symlink() else shutil.rmtree(old)
        for path in needed:
            if path is not None:
                remove_unfinished(path)


def corrupt(path: Path, why: object) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is corrupt: {why}. Remove {path}, and --resume goes on from the checkpoint before it."
    )


def read_facts(path: Path) -> dict[str, Any]:
    """What was noted with a checkpoint. Its other files are not read."""
    try:
        facts = read_meta(path)
    except DamagedError as error:
        raise corrupt(path, error) from None
    for name, kind in FIELDS.items():
        value = facts.setdefault(name, None)
        if not fits(value, kind):
            raise corrupt(path, f"{name} in {META} cannot be {value!r}")
    if not 0 <= facts["step"] < LARGEST or not 0 <= (facts["best_step"] or 0) < LARGEST:
        raise corrupt(path, f"step in {META} cannot be {facts['step']}, with best_step {facts['best_step']}")
    if not 0 <= facts["seconds"] < math.inf:
        raise corrupt(path, f"seconds in {META} cannot be {facts['seconds']}")
    if NAME.fullmatch(path.name) and int(path.name[5:]) != facts["step"]:
        raise corrupt(path, f"step in {META} is {facts['step']:,}")
    before = facts.pop("judged", facts["step"])  # its name in files of earlier versions
    return {"evaluated": before, **facts}


def check(
    path: Path, needed: Collection[str] = (WEIGHTS,), which: Callable[[str], bool] = lambda name: True
) -> dict[str, Any]:
    """What was noted with a checkpoint, after its files were compared with their checksums. which: whether to compare a
    file of this name; needed: names that must be noted."""
    facts = read_facts(path)
    if missing := [name for name in needed if name not in facts["files"]]:
        raise corrupt(path, f"files in {META} lack {missing[0]}")
    try:
        compare(path, {name: digest for name, digest in facts["files"].items() if which(name)})
    except DamagedError as error:
        raise corrupt(path, error) from None
    return facts


def write(path: Path, content: bytes | Callable[[BinaryIO], Any]) -> None:
    """A file of an unfinished checkpoint, on the disk when this returns. content: or what writes it."""
    try:
        with path.open("wb") as f:
            f.write(content) if isinstance(content, bytes) else content(f)
            f.flush()
            os.fsync(f.fileno())
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # what the disk said, before torch.save fell over it
            raise error.__context__ from None
        raise
