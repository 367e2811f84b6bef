"""One training at a time in a folder; what cannot be read there is one line that names the file, and stops the run."""

import io
import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from apart import apart, train_or_be_refused
from rich.console import Console
from training import MODEL, do, language, outcome, points, same_weights, weights

from longshort.lab.cli import main
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import read_log
from longshort.lab.train import CheckpointError, TrainingError, train
from longshort.lab.trained import Trained
from longshort.models import CharLM


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of three steps, of seven."""
    folder = tmp_path_factory.mktemp("begun")
    run = language(folder)
    do(replace(run, steps=3), folder / "out")
    return run, folder / "out"


@pytest.fixture
def copy(begun, tmp_path):
    run, out = begun
    shutil.copytree(out, tmp_path / "out")
    return run, tmp_path / "out"


def damaged(record, content):
    if content is None:
        record.unlink()
    else:
        record.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


DAMAGES = {
    "missing": None,
    "empty": b"",
    "cut off": b'{"type": "Run", "name": "langu',
    "list": [],
    "null": b"null",
    "not UTF-8": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
    "no fields": {"type": "Run"},
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_beside_a_checkpoint_refuses_to_resume(copy, content):
    """Else other settings would go unnoticed, and the record would be written anew with them."""
    run, out = copy
    record = out / run.name / "run.json"
    damaged(record, content)
    before = record.read_bytes() if record.exists() else None
    for settings in (run, replace(run, seed=7)):
        with pytest.raises((TrainingError, ValueError)) as error:
            do(settings, out, resume=True)
        assert str(record) in str(error.value) and "\n" not in str(error.value)
    assert (record.read_bytes() if record.exists() else None) == before


@pytest.mark.parametrize("changes", [dict(steps="many"), dict(seed=None), dict(colour=1), dict(model=[1])])
def test_a_record_with_wrong_fields_refuses_to_resume(copy, changes):
    run, out = copy
    record = out / run.name / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))
    with pytest.raises((TrainingError, ValueError), match=next(iter(changes))):
        do(run, out, resume=True)


def test_the_command_line_says_so_in_one_line(copy, capsys):
    run, out = copy
    record = out / run.name / "run.json"
    damaged(record, b"{")
    for command in (["evaluate", str(out / run.name)], ["generate", str(out / run.name), "--prompt", "a"]):
        assert main([*command, "--cpu"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("longshort: ") and str(record) in line


def test_a_second_training_in_one_folder_is_refused(copy):
    run, out = copy
    whole = out.parent / "whole"
    do(run, whole)
    with RunFolder(out / run.name).locked():
        with pytest.raises(TrainingError, match=f"another process is training in {out / run.name}"):
            do(run, out, resume=True)
        (out / run.name / "checkpoints" / "unfinished_00000005").mkdir()  # the other one's
        with pytest.raises(TrainingError, match="another process"):
            do(run, out, resume=True)
        assert (out / run.name / "checkpoints" / "unfinished_00000005").exists()
    do(run, out, resume=True)
    same_weights(weights(run, out), weights(run, whole))


def test_a_refused_training_leaves_no_folder(tmp_path):
    run = language(tmp_path)
    (tmp_path / "text").write_bytes(b"short")
    with pytest.raises(ValueError):
        do(run, tmp_path / "out")
    assert not (tmp_path / "out" / run.name).exists()


def test_two_trainings_that_are_killed_lose_nothing(tmp_path):
    """Whichever has the lock is killed at a moment; the other one is refused, or takes its place and is killed too."""
    run = language(tmp_path)
    do(run, tmp_path / "whole")
    steps = [0]
    with ThreadPoolExecutor(2) as pool:
        for at in (2, 40, 11, 25):
            codes = [*pool.map(lambda _, at=at: apart(train_or_be_refused, run, tmp_path / "out", at), range(2))]
            assert [-signal.SIGKILL] in codes and all(code in ([0], [-signal.SIGKILL]) for code in codes)
            steps.append(max(RunFolder(tmp_path / "out" / run.name).checkpoints.steps(), default=0))
    assert steps == sorted(steps) and steps[-1] > 0
    do(run, tmp_path / "out", resume=True)
    assert outcome(run, tmp_path / "out") == outcome(run, tmp_path / "whole")


def test_of_two_trainings_at_once_one_does_the_run(tmp_path):
    run = language(tmp_path)
    do(run, tmp_path / "whole")
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda _: apart(train_or_be_refused, run, tmp_path / "out"), range(2))] == [[0], [0]]
    assert outcome(run, tmp_path / "out") == outcome(run, tmp_path / "whole")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checkpoint.json"])
def test_every_reader_of_a_checkpoint_looks_at_its_checksums(copy, capsys, name):
    run, out = copy
    checkpoint = RunFolder(out / run.name).checkpoints.last()
    content = bytearray((checkpoint / name).read_bytes())
    content[-9] ^= 1
    (checkpoint / name).write_bytes(content)
    text = ["--text", str(out.parent / "other")]
    (out.parent / "other").write_bytes(b"some text to read")
    for place in (str(out / run.name), str(checkpoint)):
        for command in (["evaluate", place, *text], ["generate", place, "--prompt", "a"]):
            assert main([*command, "--cpu"]) == 1, command
            captured = capsys.readouterr()
            assert str(checkpoint) in captured.err and "corrupt" in captured.err and "Traceback" not in captured.err
    for which in ("best", "last"):
        with pytest.raises(CheckpointError, match="corrupt"):
            Trained.open(str(out / run.name), which).model()
    with pytest.raises(ValueError, match=f"{checkpoint} is corrupt: {name}"):
        CharLM.from_pretrained(checkpoint)


def test_a_checkpoint_of_a_run_must_have_checksums_and_a_copy_need_not(copy):
    run, out = copy
    checkpoint = RunFolder(out / run.name).checkpoints.last()
    shutil.copytree(checkpoint, out / "copy")
    for folder in (checkpoint, out / "copy"):
        (folder / "checkpoint.json").unlink()
    Trained.open(str(out / "copy")).model()
    CharLM.from_pretrained(out / "copy")
    with pytest.raises(CheckpointError, match=r"checkpoint.json cannot be read"):
        Trained.open(str(checkpoint)).model()
    with pytest.raises(ValueError, match=r"checkpoint.json cannot be read"):
        CharLM.from_pretrained(checkpoint)
    with pytest.raises(CheckpointError, match=r"checkpoint.json cannot be read"):
        do(replace(run, name="next", starts_from=replace(run, steps=3)), out, resume=True)


WRONG_RESULTS = (
    "",
    "[1, 2]",
    "3",
    "null",
    "{}",
    '{"seconds": "x", "accuracy": 3}',
    '{"seconds": true, "accuracy": {"test": null}, "device": "cpu"}',
    f'{{"seconds": 1{"0" * 400}, "accuracy": {{"test": 1{"0" * 400}}}, "device": "cpu"}}',
    "[" * 100_000,
)


@pytest.mark.parametrize("content", WRONG_RESULTS, ids=range(len(WRONG_RESULTS)))
def test_results_that_are_none_are_named(tmp_path, content):
    for name in ("result", "evaluated"):
        path = tmp_path / f"{name}.json"
        path.write_text(content)
        with pytest.raises(ValueError) as error:
            getattr(RunFolder(tmp_path), name)
        assert str(path) in str(error.value) and "\n" not in str(error.value)


@dataclass(frozen=True)
class Earlier:
    """A task as they were before evaluators."""

    metric = "score"

    def fingerprint(self):
        return ""

    def evaluate(self, model, part, parts):
        raise AssertionError("not asked")


def test_a_task_that_cannot_be_trained_on_is_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"Earlier.*batch.*evaluators"):
        do(replace(points(), task=Earlier()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_could_not_be_read_back_is_refused_before_the_work(tmp_path):
    run = language(tmp_path)
    with pytest.raises(ValueError, match=r"length.*12.5"):
        do(replace(run, task=replace(run.task, length=12.5)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_text_whose_name_is_not_utf_8_is_trained_on(tmp_path):
    path = tmp_path / "caf\udce9"
    path.write_bytes(b"a text of some length " * 99)
    run = language(tmp_path, steps=2)
    run = replace(run, task=replace(run.task, source=replace(run.task.source, path=path)))
    do(run, tmp_path / "out")
    assert RunFolder(tmp_path / "out" / run.name).run == run


def test_a_log_that_was_cut_off_is_read_and_a_damaged_one_is_named(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_log(tmp_path) == [{"step": 1, "loss": 2.0}]
    for line in ("5", "[]", '{"loss": 1.0}', f'{{"step": 1, "loss": 1{"0" * 400}}}', "\0", "[" * 100_000):
        log.write_text(f'{line}\n{{"step": 2, "loss": 1.0}}\n')
        with pytest.raises(ValueError, match=f"{log}.*line 1"):
            read_log(tmp_path)


def test_a_damaged_log_refuses_to_resume_before_anything_is_written(copy):
    run, out = copy
    record, log = out / run.name / "run.json", out / run.name / "log.jsonl"
    log.write_text(f"5\n{log.read_text()}")
    before = record.read_bytes()
    with pytest.raises(ValueError, match=f"{log}.*line 1"):
        do(replace(run, steps=9), out, resume=True)
    assert record.read_bytes() == before


def test_a_link_to_a_checkpoint_is_one_and_so_is_a_checkpoint_that_is_a_link(copy):
    run, out = copy
    checkpoint = RunFolder(out / run.name).checkpoints.last()
    (out / "link").symlink_to(checkpoint)
    assert Trained.open(str(out / "link")).run == replace(run, steps=3)
    checkpoint.rename(out / "elsewhere")
    checkpoint.symlink_to(out / "elsewhere")
    for name in (str(out / run.name), str(checkpoint)):
        assert Trained.open(name).run == replace(run, steps=3)
    do(run, out, resume=True)  # which forgets it
    assert not checkpoint.is_symlink() and (out / "elsewhere").is_dir()


def test_a_checkpoint_that_is_a_link_must_have_checksums_too(copy):
    run, out = copy
    checkpoint = RunFolder(out / run.name).checkpoints.last()
    checkpoint.rename(out / "elsewhere")
    checkpoint.symlink_to(out / "elsewhere")
    (out / "elsewhere" / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint.json cannot be read"):
        Trained.open(str(checkpoint)).model()


def test_folders_named_as_checkpoints_are_models_like_others(tmp_path):
    """As the training loop of somebody else leaves them."""
    folder = tmp_path / "checkpoints" / "step_00001000"
    CharLM(MODEL).save_pretrained(folder)
    CharLM.from_pretrained(folder)
    Trained.open(str(folder)).model()


def test_a_copy_without_the_state_of_training_is_a_model(copy):
    run, out = copy
    shutil.copytree(RunFolder(out / run.name).checkpoints.last(), out / "copy", ignore=shutil.ignore_patterns("*.pt"))
    model = CharLM.from_pretrained(out / "copy")
    Trained.open(str(out / "copy")).model()
    for p in model.parameters():
        p.data.zero_()
    model.save_pretrained(out / "copy")
    assert not any(p.any() for p in CharLM.from_pretrained(out / "copy").parameters())


def test_a_model_is_not_saved_over_a_checkpoint_of_a_run(copy):
    run, out = copy
    checkpoint = RunFolder(out / run.name).checkpoints.last()
    with pytest.raises(ValueError, match=f"{checkpoint} is a checkpoint of a run"):
        CharLM.from_pretrained(checkpoint).save_pretrained(checkpoint)
    Trained.open(str(checkpoint)).model()


def test_best_or_last(copy):
    run, out = copy
    with pytest.raises(ValueError, match=r"which.*'first'"):
        Trained.open(str(out / run.name), "first")


def test_a_training_of_classes_that_are_not_registered_says_so(tmp_path):
    console = Console(file=io.StringIO(), width=500)
    train(points(steps=1), str(tmp_path), cpu=True, console=console)
    first, *_ = console.file.getvalue().splitlines()
    assert "points" in first and "training:" in first and "registered" in first
    with pytest.raises(ValueError, match=r"run.json cannot be read here: .*training:"):
        _ = RunFolder(tmp_path / "points").run


def test_the_folder_of_a_run_is_no_model_but_its_checkpoints_are(copy):
    run, out = copy
    with pytest.raises(FileNotFoundError, match=r"config.json.*checkpoints.step_00000003"):
        CharLM.from_pretrained(out / run.name)
