"""The report on Imagenette: models trained alike, evaluated by their last epoch, once, and a table that says so."""

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pictures import CVT
from rich.console import Console
from shapes import as_folder, files
from training import before_call

from longshort.lab.cli import main
from longshort.lab.recipes import imagenet
from longshort.lab.report import Wish, imagenette
from longshort.lab.report.imagenette import LINES, Found, Line, markdown, report
from longshort.lab.report.jobs import evaluate_run
from longshort.lab.runs.folder import RunFolder, read_run
from longshort.lab.runs.log import read_log
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.train import StoppedError, TrainingError

STEPS, ENDINGS = 4, ("md", "json", "png")
OURS = (Line("cvt_ls_13", 16, seeds=2), Line("cvt_13", 16), Line("cvt_ls_13_plain", 16))
pytestmark = pytest.mark.usefixtures("one_thread", "small")


@pytest.fixture(scope="module")
def small():
    """The recipe's own run, with a small model, few pictures and few steps."""

    def made(data, **options):
        run = imagenet.imagenette(data, **options)
        model = CVT if options["model"] != "cvt_13" else CVT.with_attention(*(s.attention for s in run.model.stages))
        task = replace(run.task, images=6, evaluation_batch=4, classes=3)
        every = dict(log_every=2, evaluate_every=2, save_every=2)
        return replace(run, model=replace(model, classes=3), task=task, steps=STEPS, **every)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imagenette, "imagenette", made)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return as_folder(tmp_path_factory.mktemp("pictures"), files(train=6))


def do(out, lines=OURS, **wish):
    """What was found, and what was printed."""
    console = Console(file=io.StringIO(), width=200)
    return report(Wish(OURS, lines, out, cpu=True, **wish), console=console), console.file.getvalue()


def name(model, seed=0):
    return f"imagenet.imagenette.{model}.16.seed{seed}"


def test_all_lines_are_trained_evaluated_and_written(finished):
    out, found, printed = finished
    assert [len(f.accuracy) for f in found] == [2, 1, 1] and all(len(f.minutes) == len(f.accuracy) for f in found)
    facts = json.loads((out / "imagenette.json").read_text())["lines"]
    assert [fact["line"] for fact in facts] == ["cvt_ls_13/16", "cvt_13/16", "cvt_ls_13_plain/16"]
    assert [fact["accuracy"] for fact in facts] == [f.accuracy for f in found]
    assert (out / "imagenette.md").read_text() == markdown(found) + "\n" and markdown(found) in printed
    assert (out / "imagenette.png").stat().st_size > 10_000
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        name("cvt_ls_13"),
        name("cvt_ls_13", 1),
        name("cvt_13"),
        name("cvt_ls_13_plain"),
    }


def test_the_last_epoch_is_evaluated_on_the_validation_set(finished):
    """The best would be chosen by the pictures that it is evaluated on."""
    out, found, _ = finished
    facts = RunFolder(out / name("cvt_13")).evaluated
    assert facts["checkpoint"] == STEPS and list(facts["accuracy"]) == ["validation"]
    result = json.loads((out / name("cvt_13") / "result.json").read_text())
    assert found[1].accuracy == [100 * result["metrics"]["accuracy"]]
    run = read_run(out / name("cvt_13") / "run.json")
    assert len(run.task.splits.dev) == 9 and evaluate_run(run, out, cpu=True) == facts


def test_what_is_done_is_not_done_again_and_needs_no_data(finished, data, begun):
    out, found, _ = finished
    assert do(out, data=data)[0] == found and do(out, train=False)[0] == found and begun == []


def test_other_data_needs_another_folder(finished, tmp_path, begun):
    with pytest.raises(TrainingError, match="was trained on other data than there is now: give another --out"):
        do(finished[0], data=as_folder(tmp_path, files(train=7)))
    assert begun == []


def test_a_stopped_report_goes_on(finished, data, tmp_path, begun, monkeypatch):
    _, found, _ = finished
    with monkeypatch.context() as patch, pytest.raises(StoppedError, match="stopped at step 2, which is saved"):
        before_call(patch.setattr, ImageClassification, "batch", 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        do(tmp_path, OURS[1:2], data=data)
    assert "not yet run" in (tmp_path / "imagenette.md").read_text()
    again, _ = do(tmp_path, OURS[1:2], data=data)
    assert begun == [name("cvt_13")] * 2 and again[0].accuracy == found[1].accuracy


def test_the_table():
    line = LINES[0]
    one = Found(line, [81.25], [5.5], [3_210.4], ["a GPU"], epochs=60.0)
    two = replace(one, accuracy=[80.0, 82.0], minutes=[5.0, 6.0])
    assert markdown([Found(line), one, two]).splitlines() == [
        "| model | pictures | epochs | validation set, % | minutes | pictures a second | on |",
        "|---|---|---|---|---|---|---|",
        "| CvT*-LS-13 | 160² |  | not yet run |  |  |  |",
        "| CvT*-LS-13 | 160² | 60 | 81.25 | 5.50 | 3,210 | a GPU |",
        "| CvT*-LS-13 | 160² | 60 | 81.00 ± 1.41 (2 seeds) | 5.50 | 3,210 | a GPU |",
        "",
        imagenette.NOTE,
    ]


def test_time_speed_and_machine_are_those_of_the_training(finished):
    out, found, printed = finished
    seconds = json.loads((out / name("cvt_13") / "result.json").read_text())["seconds"]
    assert found[1].minutes == [seconds / 60]
    speeds = [line["pictures_per_second"] for line in read_log(out / name("cvt_13")) if "loss" in line]
    assert len(speeds) == 2 and found[1].per_second == [sum(speeds) / 2] and found[1].devices == ["cpu"]
    assert printed.replace("\n", "").endswith(f"written: {', '.join(str(out / f'imagenette.{e}') for e in ENDINGS)}")


def test_what_was_not_drawn_is_not_said_to_be(tmp_path):
    _, printed = do(tmp_path, train=False)
    assert "imagenette.json" in printed and ".png" not in printed and not (tmp_path / "imagenette.png").exists()


def test_data_must_be_named_and_there(tmp_path, capsys):
    assert main(["report", "imagenette", "--out", str(tmp_path / "out"), "--cpu"]) == 1
    assert "say with --data where Imagenette is" in capsys.readouterr().err
    assert main(["report", "imagenette", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "no"), "--cpu"]) == 1
    assert "no is not there" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_the_lines_are_those_of_the_recipe():
    for line in LINES:
        run = imagenet.imagenette(Path("x"), model=line.model, side=line.side)
        assert run.name == f"imagenet.imagenette.{line.model}.{line.side}.seed0"
        assert run.schedule.warmup == 5 * imagenet.NETTE_STEPS and run.steps == 60 * imagenet.NETTE_STEPS
