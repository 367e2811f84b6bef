"""The benchmark of the vision models: every model is made and timed, what fails is told, and a figure is drawn."""

import json
from dataclasses import replace

import pytest
import torch
from pictures import CVT, VIL
from rich.console import Console

from longshort.lab.bench import vision
from longshort.lab.bench.vision import Case, Row, bench_vision, cases, cvts, draw, table_of, vils
from longshort.lab.cli import main
from longshort.models.cvt import AT_224, AT_384, AT_448
from longshort.nn.spec import Full


@pytest.fixture
def small(monkeypatch):
    def fails():
        raise RuntimeError("no such memory\nand more")

    small = {"CvT-13, full attention": CVT.with_attention(Full(), Full(), Full()).build, "CvT*-LS-13": CVT.build}
    monkeypatch.setattr(vision, "cvts", lambda size: small)
    monkeypatch.setattr(vision, "vils", lambda size: {"ViL-medium, full attention": fails, "ViL-LS-medium": VIL.build})
    monkeypatch.setattr(vision, "CLASSES", 5)
    monkeypatch.setattr(vision, "LATENCY", 2)


def test_all_is_measured_told_and_drawn(small, tmp_path, figures):
    printed = Console(width=200, record=True)
    chosen = [Case("ViL", 32, 2), Case("CvT", 32, 2), Case("CvT", 48, 2)]
    rows = bench_vision(chosen, tmp_path / "v.json", repeats=1, console=printed, device="cpu")
    assert len(rows) == 12 and [row.what for row in rows[:2]] == ["inference", "training"]
    assert [row.failure for row in rows if row.failure] == ["no such memory"] * 2
    facts = json.loads((tmp_path / "v.json").read_text())["rows"]
    assert facts[4]["images_per_second"] == pytest.approx(1e3 * 2 / facts[4]["ms"])
    assert facts[4]["ns_per_pixel"] == pytest.approx(1e6 * facts[4]["ms"] / (2 * 32 * 32))
    text = printed.export_text()
    assert "CvT, 48²" in text and "no such memory" in text and (tmp_path / "v.png").exists()
    labels = [text.get_text() for axes in figures[-1].axes for text in axes.get_legend().get_texts()]
    assert "CvT*-LS-13" in labels


def test_ratios_are_to_full_attention():
    rows = [Row("CvT, 32²", 32, name, "training", 4, ms=ms, gib=1.0) for name, ms in (("full", 8.0), ("ours", 2.0))]
    console = Console(width=200, record=True)
    console.print(table_of(rows, compiled=True))
    assert "4.00×" in console.export_text()


def test_the_papers_windows_for_each_size():
    for size, expected in ((224, AT_224), (288, AT_224), (384, AT_384), (448, AT_448)):
        config = cvts(size)["CvT*-LS-13"].__self__
        assert tuple(stage.attention for stage in config.stages) == expected
    layouts = {name: make.__self__ for name, make in vils(512).items() if "Swin" not in name}
    assert {c.size for c in layouts.values()} == {(512, 512)}
    full = layouts["ViL-medium, full attention"]
    assert all(s.attention == Full() and s.positions == "absolute" for s in full.stages)
    assert {case.size for case in cases() if case.family == "ViL"} == {224, 384, 512, 1024}


def test_a_figure_of_one_family(tmp_path):
    rows = [Row("ViL, 64²", 64, "ViL-LS-medium", "training", 2, ms=1.0, gib=0.5)]
    draw([*rows, replace(rows[0], case="ViL, 128²", size=128, ms=5.0)], tmp_path / "one.png", "here")
    assert (tmp_path / "one.png").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is missing")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "vision"])
    assert "no CUDA device" in capsys.readouterr().err
