"""A checkpoint is there as a whole or not at all, says when it is not what was written, and survives a full disk."""

import json
import re
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
from training import before_call, checkpoints, do, full, language, outcome, points, same_weights, weights

from longshort import checksums
from longshort.checksums import META
from longshort.lab.runs import checkpoints as checkpoint
from longshort.lab.runs import files
from longshort.lab.runs.checkpoints import Checkpoints, check
from longshort.lab.runs.files import write_whole
from longshort.lab.train import CheckpointError, state

FILES = ("model.safetensors", "config.json", "optimizer.pt", "process_0.pt", META)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def changed(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def missing(path):
    path.unlink()


@contextmanager
def small_disk(size):
    """On which no file grows beyond `size`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of which two checkpoints are there, and what it led to."""
    out = tmp_path_factory.mktemp("done")
    run = points()
    do(run, out)
    return run, out


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spoil", [truncated, changed, missing])
def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_serves(tmp_path, done, name, spoil):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    last = checkpoints(run, tmp_path).last()
    assert {path.name for path in last.iterdir()} == set(FILES)
    spoil(last / name)
    with pytest.raises(CheckpointError) as e:
        do(run, tmp_path, resume=True)
    assert f"checkpoint {last} is corrupt: {name}" in str(e.value)
    assert f"Remove {last}, and --resume goes on from the checkpoint before it." in str(e.value)
    shutil.rmtree(last)
    do(run, tmp_path, resume=True)
    assert outcome(run, tmp_path) == outcome(run, whole)


@pytest.mark.parametrize(
    "old, new", [('"step": 6', '"step": 5'), ('"processes": 1', '"processes": 2'), ("best", "beast")]
)
def test_the_facts_have_a_checksum_too(tmp_path, done, old, new):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    meta = checkpoints(run, tmp_path).last() / META
    assert old in meta.read_text()
    meta.write_text(meta.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match=f"{META} is not what was written"):
        check(meta.parent)


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", "\x00"])
def test_facts_that_are_none(tmp_path, content):
    (tmp_path / META).write_text(content)
    with pytest.raises(CheckpointError, match=rf"checkpoint {tmp_path} is corrupt: {META} cannot be read"):
        check(tmp_path)


def test_a_run_does_not_start_from_a_corrupt_checkpoint(tmp_path, done):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    changed(checkpoints(run, tmp_path).best() / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"corrupt: model.safetensors"):
        do(points(name="next", starts_from=run), tmp_path, resume=True)


@pytest.mark.parametrize(
    "owner, name, call",
    [*((state, "write", call) for call in (1, 2, 3, 4)), (checkpoint, "flush_folder", 1), (checkpoint.os, "rename", 1)],
)
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, done, owner, name, call):
    run, whole = done
    do(replace(run, steps=2), tmp_path)
    before, last = weights(run, tmp_path), checkpoints(run, tmp_path).last()
    with monkeypatch.context() as patch:
        before_call(patch.setattr, owner, name, call, full)
        with pytest.raises(CheckpointError) as e:
            do(run, tmp_path, resume=True)
    assert f"cannot write the checkpoint of step 4 in {last.parent}: No space left on device" in str(e.value)
    assert f"the one before it, {last}, is intact. Make room or give another folder" in str(e.value)
    assert list(last.parent.iterdir()) == [last]
    check(last)
    same_weights(weights(run, tmp_path), before)
    do(run, tmp_path, resume=True)
    same_weights(weights(run, tmp_path), weights(run, whole))


def test_a_full_disk_at_the_first_checkpoint(tmp_path, monkeypatch):
    run = points()
    with monkeypatch.context() as patch:
        before_call(patch.setattr, state, "write", 2, full)
        with pytest.raises(CheckpointError, match=r"step 2 in .*: No space left on device; no earlier one is there"):
            do(run, tmp_path)
    assert list(checkpoints(run, tmp_path).folder.iterdir()) == []
    assert do(run, tmp_path, resume=True)[0].step == 6


@pytest.mark.parametrize("size", [6_000, 12_000, 40_000])
def test_a_disk_that_is_really_full(tmp_path, size):
    run = language(tmp_path)
    do(replace(run, steps=3), tmp_path)
    sizes = [path.stat().st_size for path in checkpoints(run, tmp_path).last().iterdir()]
    assert any(s > size for s in sizes)
    with small_disk(size), pytest.raises(CheckpointError, match=r"step 4 in .*: File too large; the one before it"):
        do(run, tmp_path, resume=True)
    assert [path.name for path in checkpoints(run, tmp_path).folder.iterdir()] == ["step_00000003"]
    do(run, tmp_path, resume=True)
    do(run, tmp_path / "whole")
    same_weights(weights(run, tmp_path), weights(run, tmp_path / "whole"))


def test_other_failures_keep_their_name(tmp_path):
    def fails(_):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        checkpoint.write(tmp_path / "file", fails)


def test_a_file_in_the_way_of_a_checkpoint(tmp_path, monkeypatch):
    run = points()
    folder = checkpoints(run, tmp_path).folder

    def in_the_way():
        (folder / "unfinished_00000002").touch()

    before_call(monkeypatch.setattr, state, "get_model_state_dict", 1, in_the_way)
    with pytest.raises(CheckpointError, match=rf"cannot write the checkpoint of step 2 in {folder}: Not a directory"):
        do(run, tmp_path)


def test_what_was_left_unfinished_is_removed_and_what_is_too_old(tmp_path, done):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    folder = checkpoints(run, tmp_path).folder
    (folder / "unfinished_00000005").mkdir()
    (folder / "unfinished_00000005" / "model.safetensors").touch()
    (folder / "step_00000001").mkdir()
    do(run, tmp_path, resume=True)
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000004", "step_00000006"]


def test_what_is_no_checkpoint_is_none(tmp_path):
    there = Checkpoints(tmp_path / "none")
    assert there.steps() == [] and there.last() is None and there.best() is None
    for name in ("unfinished_00000003", "step_x", "step_", "step_00000012", "step_100000000"):
        (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path).steps() == [12, 100_000_000]
    assert Checkpoints(tmp_path).last().name == "step_100000000"


def test_the_best_is_the_last_where_it_is_not_known(tmp_path):
    there = Checkpoints(tmp_path)
    for step in (3, 4):
        there.path(step).mkdir()
    known = dict(step=4, files={}, metrics={}, data="", best=0.0, last_loss=1.0, seconds=1.0)
    for best_step, expected in ((None, 4), (2, 4), (3, 3)):
        (there.path(4) / META).write_bytes(checksums.with_checksum({**known, "best_step": best_step}))
        assert there.best() == there.path(expected)


@pytest.mark.parametrize("facts", [b"{", b"{}", b"[]", b"5", b'{"best_step": 3}', b"\xff", b"[" * 100_000])
def test_where_the_best_cannot_be_known_nothing_is_opened_or_removed(tmp_path, facts):
    there = Checkpoints(tmp_path)
    for step in (1, 2, 3, 4):
        there.path(step).mkdir()
    (there.path(4) / META).write_bytes(facts)
    with pytest.raises(CheckpointError, match=f"{there.path(4)}.*{META}"):
        there.best()
    there.tidy()
    assert there.steps() == [1, 2, 3, 4]


WRONG = [
    *(dict(step=step) for step in ("4", -5, 10**300, True, None)),
    *(dict(files=files) for files in ([], {"a/b": ""}, {"a\0": ""}, {"..": ""})),
    dict(files={"config.json": ""}),
    dict(metrics=3),
    dict(metrics={"bpc": None}),
    dict(metrics={"bpc": 10**400}),
    dict(best_step="x"),
    dict(best_step=10**300),
    dict(data=1),
    dict(best="x"),
    dict(seconds=None),
    dict(seconds=-1.0),
    dict(seconds=float("inf")),
    dict(seconds=float("nan")),
    dict(last_loss=[]),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_facts_of_wrong_types_are_named(tmp_path, wrong):
    known = dict(step=4, files={}, metrics={}, data="", best_step=None, best=0.0, last_loss=1.0, seconds=1.0)
    (tmp_path / META).write_bytes(checksums.with_checksum({**known, **wrong}))
    with pytest.raises(CheckpointError, match=f"{next(iter(wrong))}.* in {META}|in {META}.*{next(iter(wrong))}"):
        check(tmp_path)


def test_a_checkpoint_under_the_name_of_another_is_refused(tmp_path, done):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    there = checkpoints(run, tmp_path)
    there.last().rename(there.path(99))
    with pytest.raises(CheckpointError, match=r"step_00000099.*step in .* is 6"):
        check(there.path(99))


OTHER_NAMES = ("step_" + 8 * "\u00b2", "step_" + 8 * "\u0663", "step_7", "step_000000400", "step_0000000x", "step_")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_are_no_checkpoints(tmp_path, name):
    (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path).steps() == []


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")
    with monkeypatch.context() as patch:
        before_call(patch.setattr, files.os, "fsync", 1, full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_other_processes_is_refused(tmp_path, done):
    run, whole = done
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    last = checkpoints(run, tmp_path).last()
    facts = json.loads((last / META).read_text())
    del facts["facts"]
    facts["processes"] = 2
    (last / META).write_text(json.dumps({**facts, "facts": checksums.checksum_of(facts)}))
    words = rf"checkpoint {re.escape(str(last))} is of a run with 2 processes, and there are 1"
    with pytest.raises(CheckpointError, match=words):
        do(run, tmp_path, resume=True)
