"""Checkpoints on the disk: each a folder that is there as a whole or not at all, with a checksum of every file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from longshort.lab.runs.errors import CheckpointError

META = "checkpoint.json"
KEPT = 2  # the last ones, beside the best


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
        names = [p.name for p in self.folder.glob("step_*")] if self.folder.is_dir() else []
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def last(self) -> Path | None:
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def best(self) -> Path | None:
        """The best by the metric of its task; the last while none was judged."""
        last = self.last()
        if last is None:
            return None
        try:
            path = self.path(json.loads((last / META).read_text())["best_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return last
        return path if path.is_dir() else last

    def unfinished(self, step: int) -> Path:
        return self.folder / f"unfinished_{step:08d}"

    @contextmanager
    def guarded(self, step: int) -> Iterator[None]:
        """Turns what a disk can say into words."""
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

    def finish(self, step: int, about: dict[str, Any]) -> Path:
        """Give the folder its name, once all is on the disk; then forget what is too old."""
        folder, path = self.unfinished(step), self.path(step)
        files = {p.name: checksum(p) for p in sorted(folder.iterdir())}
        facts = {**about, "step": step, "files": files}
        facts["facts"] = checksum_of(facts)
        write(folder / META, lambda f: f.write(json.dumps(facts, indent=1).encode()))
        flush_folder(folder)
        os.rename(folder, path)
        flush_folder(self.folder)
        self.tidy()
        return path

    def amend(self, step: int, changes: dict[str, Any]) -> None:
        """Note something else with a checkpoint."""
        path = self.path(step)
        facts = {**read_about(path), **changes}
        facts["facts"] = checksum_of(facts)
        with self.guarded(step):
            write_whole(path / META, json.dumps(facts, indent=1).encode())

    def abandon(self, step: int) -> None:
        """Remove what was written of a checkpoint that cannot be finished."""
        shutil.rmtree(self.unfinished(step), ignore_errors=True)

    def tidy(self) -> None:
        """Remove what a killed run left unfinished, and what is too old."""
        kept = {self.path(s) for s in self.steps()[-KEPT:]} | {self.best()}
        for s in self.steps():
            if self.path(s) not in kept:
                os.rename(self.path(s), self.unfinished(s))  # what is gone in part has no complete name
        for old in self.folder.glob("unfinished_*"):
            shutil.rmtree(old)


def read_about(path: Path) -> dict[str, Any]:
    """What was noted with a checkpoint, after every file was compared with its checksum."""
    advice = f"Remove {path}, and --resume goes on from the checkpoint before it."
    try:
        about: dict[str, Any] = json.loads((path / META).read_text())
        whole = about.pop("facts") == checksum_of(about)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} is corrupt: {META} cannot be read ({error}). {advice}") from None
    if not whole:
        raise CheckpointError(f"checkpoint {path} is corrupt: {META} is not what was written. {advice}")
    for name, expected in about["files"].items():
        try:
            found = checksum(path / name)
        except OSError as error:
            raise CheckpointError(f"checkpoint {path} is corrupt: {name}: {error.strerror}. {advice}") from None
        if found != expected:
            raise CheckpointError(f"checkpoint {path} is corrupt: {name} is not what was written. {advice}")
    return about


def checksum(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def checksum_of(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """A file, on the disk when this returns."""
    try:
        with path.open("wb") as f:
            fill(f)
            f.flush()
            os.fsync(f.fileno())
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # what the disk said, before torch.save fell over it
            raise error.__context__ from None
        raise


def write_whole(path: Path, content: bytes) -> None:
    """A file that has the old content or the new, never a part."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    write(unfinished, lambda f: f.write(content))
    os.replace(unfinished, path)


def flush_folder(path: Path) -> None:
    """Names, too, must reach the disk."""
    if os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
