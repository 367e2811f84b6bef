"""The comparison reports what it measured, also when it is interrupted."""

import io
import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
from longshort.lab.bench import attention
from longshort.lab.bench.attention import Case, Measured, bench_attention, measure
from longshort.lab.bench.full import FullAttention, FullCausalAttention


@pytest.fixture
def small_cases():
    return [
        Case(
            "sequence", LongShortAttention(8, 2, window=4, rank=2), FullAttention(8, 2), (torch.randn(1, 20, 8),), 2.0
        ),
        Case(
            "causal",
            CausalLongShortAttention(8, 2, window=4, segment=2, rank=1),
            FullCausalAttention(8, 2),
            (torch.randn(1, 20, 8),),
            1.0,
        ),
        Case(
            "grid",
            GridLongShortAttention(8, 2, window=2, rank=2, relative_bias=True),
            FullAttention(8, 2),
            (torch.randn(1, 30, 8), (5, 6)),
            0.5,
        ),
    ]


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


def test_json_and_table_hold_every_case(small_cases, console, tmp_path):
    out = tmp_path / "new" / "bench.json"
    results = bench_attention(small_cases, out, repeats=1, console=console)
    report = json.loads(out.read_text(encoding="utf-8"))
    printed = console.file.getvalue()
    assert [line["case"] for line in report["results"]] == ["sequence", "causal", "grid"]
    assert [line["target"] for line in report["results"]] == [2.0, 1.0, 0.5]
    for line, result in zip(report["results"], results, strict=True):
        assert line["ours_ms"] > 0 and line["ratio"] == line["theirs_ms"] / line["ours_ms"] == result.ratio
        assert line["case"] in printed and f"{line['ratio']:.2f}×" in printed
    assert report["repeats"] == 1
    assert torch.__version__ in report["machine"] and report["machine"] in printed


def test_ours_and_theirs_are_not_swapped(small_cases, monkeypatch):
    steps = []
    monkeypatch.setattr(attention, "forward_backward", lambda layer, *inputs: steps.append((layer, inputs)) or layer)
    times = {FullAttention: 10.0, GridLongShortAttention: 4.0}
    monkeypatch.setattr(attention, "milliseconds", lambda *layers, repeats: [times[type(layer)] for layer in layers])
    grid = small_cases[2]
    assert measure(grid, repeats=1) == Measured("grid", ours_ms=4.0, theirs_ms=10.0, target=0.5)
    assert steps == [(grid.ours, grid.inputs), (grid.theirs, grid.inputs[:1])]


def test_interrupted_run_keeps_what_it_measured(console, tmp_path, monkeypatch):
    def measure_one(case, repeats):
        if case.name == "second":
            raise KeyboardInterrupt
        return Measured(case.name, 2.0, 5.0, 1.0)

    monkeypatch.setattr(attention, "measure", measure_one)
    cases = [SimpleNamespace(name=name) for name in ("first", "second", "third")]
    with pytest.raises(KeyboardInterrupt):
        bench_attention(cases, tmp_path / "bench.json", repeats=1, console=console)
    printed = console.file.getvalue()
    assert "first" in printed and "2.50×" in printed and "second" not in printed
    assert [r["case"] for r in json.loads((tmp_path / "bench.json").read_text())["results"]] == ["first"]


def test_unwritable_path_is_refused_before_measuring(console, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(OSError, match="directory"):
        bench_attention([SimpleNamespace(name="first")], tmp_path, repeats=1, console=console)


def test_the_cases_are_the_promised_ones():
    targets = {case.name: case.target for case in attention.cases()}
    assert targets == {
        "sequence, n = 4096": 3.5,
        "sequence, n = 8192": 6.0,
        "causal, n = 4096": 1.5,
        "grid, 4 × 56 × 56": 2.5,
    }
