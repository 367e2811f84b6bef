"""The report on IMDb: encoders trained alike, evaluated on all test reviews and on the longest, once."""

import json

import pytest
import transformers as hf
from tiny_encoders import reviews, tiny_checkpoint

from longshort.lab.cli import main
from longshort.lab.report import imdb
from longshort.lab.report.imdb import Found, Line, lines_of, markdown


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imdb, "SHORT", 40)
    hf.utils.logging.disable_progress_bar()
    tiny_checkpoint(tmp_path / "tiny", "roberta")
    reviews(tmp_path / "imdb")


def test_all_lines_are_trained_evaluated_and_written_once(tmp_path, capsys):
    wish = ["report", "imdb", "--data", "imdb", "--checkpoint", "tiny", "--length", "70", "--steps", "2", "--cpu"]
    assert main([*wish, "--seeds", "1"]) == 0
    told = capsys.readouterr().out
    facts = json.loads((tmp_path / "out/imdb/imdb.tiny.2steps.json").read_text())["lines"]
    assert [fact["line"] for fact in facts] == ["tiny/full/40", "tiny/full/70", "tiny/128,64/70"]
    for fact in facts:
        assert set(fact["accuracy"]) == {"test", "longest tenth"} and len(fact["accuracy"]["test"]) == 1
    written = (tmp_path / "out/imdb/imdb.tiny.2steps.md").read_text()
    assert written in told and "not yet run" not in written and "| tiny | long-short, 128,64 | 70 |" in written
    first = (tmp_path / "out/imdb").rglob("evaluated.json")
    times = {path: path.stat().st_mtime_ns for path in first}
    assert len(times) == 3
    assert main([*wish, "--seeds", "1"]) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_what_was_not_run_is_said(tmp_path, capsys):
    assert main(["report", "imdb", "--checkpoint", "tiny", "--no-train"]) == 0
    assert capsys.readouterr().out.count("not yet run") == 6
    assert main(["report", "imdb", "--checkpoint", "tiny", "--data", "nowhere", "--cpu"]) == 1
    assert "IMDb is not in nowhere" in capsys.readouterr().err


def test_lines():
    lines = lines_of("x", 2048)
    assert [line.name for line in lines] == ["x/full/40", "x/full/2048", "x/128,64/2048"]
    assert [line.run(1).name for line in lines] == [
        "roberta.imdb.x.full.n40.seed1",
        "roberta.imdb.x.full.n2048.seed1",
        "roberta.imdb.x.w128r64.n2048.seed1",
    ]
    assert [line.name for line in lines_of("x", 40)] == ["x/full/40", "x/128,64/40"]
    found = Found(Line("x", "8,4", 70), {"test": [90.0, 91.0], "longest tenth": [80.0, 80.0]}, [2.0, 3.0], ["a", "a"])
    found.ms, found.mib = 12.34, 2048.0
    row = "| x | long-short, 8,4 | 70 | 90.50 ± 0.71 (2 seeds) | 80.00 ± 0.00 (2 seeds) | 12.3 | 2,048 | 2.5 | a |"
    assert row in markdown([found])
