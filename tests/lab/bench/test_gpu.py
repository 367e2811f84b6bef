"""The GPU benchmark, its whole way on tiny sizes on the CPU: what it measures, writes, draws and survives."""

import io
import json

import pytest
import torch
from rich.console import Console

from longshort.geometry import Causal, Segments, Tiles
from longshort.lab.bench import gpu, report
from longshort.lab.bench.gpu import NO_CUDA, PASSES, attempt, bench_gpu, main
from longshort.lab.bench.report import Row, Side, cells
from longshort.lab.bench.settings import Setting, settings
from longshort.lab.bench.sides import comparisons, core_of, full_core, layer_of, per_head
from longshort.lab.bench.timing import Work

CPU = torch.device("cpu")
CAUSAL = [
    Setting(f"causal, n = {n}", Causal(8, 4, 1), 64 // n, n, 16, 2, n // 4, {"layer": 1.0}, 2.0, 250.0)
    for n in (32, 64)
]
SEQUENCE = Setting("LRA", Segments(4), 2, 33, 16, 2, 3, {"core": 5.0})
GRID = Setting("grid", Tiles(3, 6, 7), 2, 42, 16, 2, 3)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def test_every_pass_of_layer_and_core_is_measured_and_written(console, tmp_path):
    out = tmp_path / "new" / "bench.json"
    rows = bench_gpu([*CAUSAL, SEQUENCE, GRID], out, repeats=1, device="cpu", console=console)
    found = json.loads(out.read_text(encoding="utf-8"))
    both = [(what, which) for what in ("layer", "core") for which in PASSES]
    lines = found["results"]
    assert [(line["what"], line["pass"]) for line in lines if line["case"] == "grid"] == both
    assert len(both) == 6 and len(lines) == len(rows) == 4 * len(both)
    assert found["machine"]["torch"] == torch.__version__ and found["repeats"] == 1
    for line in lines:
        if "CUDA graph" not in line["pass"]:
            assert line["ours_ms"] > 0 and line["ratio"] == line["theirs_ms"] / line["ours_ms"]
            assert (line["tflops"] is None) == (line["what"] == "layer")
        assert line["ours_mib"] is None
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.parent.glob("*.partial"))
    printed = console.file.getvalue()
    assert all(case.name in printed for case in (*CAUSAL, SEQUENCE, GRID)) and str(out) in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_a_graph_that_cannot_be_captured_is_a_row_that_says_why(console, tmp_path):
    rows = bench_gpu([SEQUENCE], tmp_path / "b.json", repeats=1, device="cpu", console=console)
    graphs = [row for row in rows if "CUDA graph" in row.which]
    assert [row.what for row in graphs] == ["layer", "core"]
    for row in graphs:
        assert "CUDA" in row.ours.failure and "CUDA" in row.theirs.failure and row.ratio is None
    assert "RuntimeError" in console.file.getvalue()


def test_targets_belong_to_training_steps_against_full_attention():
    sides = Side(2.0, 30.0), Side(5.0, 10.0)
    layer = Row(CAUSAL[0], "layer", "SDPA, causal", "forward + backward", *sides)
    core = Row(CAUSAL[0], "core", "SDPA", "forward + backward", *sides)
    assert (layer.ratio, layer.target, layer.memory_ratio, layer.memory_target) == (2.5, 1.0, 3.0, 2.0)
    assert (layer.tflops, layer.tflops_target) == (None, None)
    assert (core.target, core.memory_target, core.tflops_target) == (None, None, 250.0)
    assert core.tflops == CAUSAL[0].flops("forward + backward") / 2e-3 / 1e12
    for other in (
        Row(CAUSAL[0], "layer", "SDPA, causal", "forward", *sides),
        Row(CAUSAL[0], "core", "FlexAttention", "forward + backward", *sides),
    ):
        assert (other.target, other.memory_target, other.tflops_target) == (None, None, None)
    assert cells(layer)[5:8] == ["[green]2.50×[/]", "1.0×, 2× MiB", "[red]30[/]"]


def test_out_of_memory_on_one_side_leaves_the_other(console, tmp_path, monkeypatch):
    def too_much(setting, device):
        raise torch.OutOfMemoryError("Tried to allocate 1 PiB")

    monkeypatch.setattr("longshort.lab.bench.sides.full_layer", too_much)
    rows = bench_gpu(CAUSAL[:1], tmp_path / "b.json", repeats=1, device="cpu", console=console)
    rows = [row for row in rows if "CUDA graph" not in row.which]
    assert [row.theirs.failure for row in rows] == ["out of memory"] * 2 + [""] * 2
    assert all(row.ours.ms > 0 for row in rows) and rows[0].ratio is None
    assert "out of memory" in console.file.getvalue()
    assert not (tmp_path / "b.png").exists()  # nothing to compare


def test_a_failed_step_lets_go_of_its_memory():
    def fails():
        raise ValueError("first line\n  second")

    step, side = attempt(lambda: Work(fails, (), torch.ones(())), lambda work: work.forward, CPU)
    assert step is None and side == Side(failure="ValueError: first line second")


def test_interrupted_run_keeps_what_it_measured(console, tmp_path, monkeypatch):
    def interrupted(case, **_):
        yield Row(case, "layer", "SDPA, causal", "forward + backward", Side(2.0), Side(5.0))
        if case is CAUSAL[1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench_gpu([*CAUSAL, GRID], tmp_path / "b.json", repeats=1, device="cpu", console=console)
    found = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    assert [line["case"] for line in found["results"]] == [case.name for case in CAUSAL]
    assert (tmp_path / "b.png").exists() and "2.50×" in console.file.getvalue()


def test_figure_is_of_the_causal_layer_in_training(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(report, "draw_lengths", lambda timed, path, **words: drawn.append((timed, words["tokens"])))
    sides = Side(2.0), Side(5.0)
    rows = [
        Row(CAUSAL[0], "layer", "", "forward", *sides),
        Row(CAUSAL[0], "layer", "", "forward + backward", *sides),
        Row(CAUSAL[0], "core", "", "forward + backward", *sides),
        Row(CAUSAL[1], "layer", "", "forward + backward", Side(failure="out of memory"), Side(5.0)),
        Row(GRID, "layer", "", "forward + backward", *sides),
    ]
    assert report.draw(rows, tmp_path / "f.png", CPU)
    assert drawn == [([report.Timed(32, 2.0, 5.0)], "tokens of a sequence; 64 in every batch")]


@pytest.mark.parametrize("case", [CAUSAL[0], SEQUENCE, GRID], ids=lambda case: case.name)
def test_every_given_tensor_gets_a_gradient(case):
    for make in (layer_of, core_of, full_core):
        work = make(case, CPU)
        work.forward_backward()
        assert all(leaf.is_leaf and leaf.grad is not None and leaf.dtype is torch.bfloat16 for leaf in work.leaves)
    tensors = {"causal, n = 32": 9, "LRA": 5, "grid": 6}  # q, k, v, rows and, for two of them, positions or bias
    assert len(core_of(case, CPU).leaves) == tensors[case.name]


def test_heads_lie_in_memory_as_a_projection_leaves_them():
    q = per_head(GRID, 42, CPU)
    assert q.shape == (2, 2, 42, 8) and q.transpose(1, 2).is_contiguous() and q.is_leaf


def test_flex_is_compared_when_asked_for():
    against = [found.against for found in comparisons(GRID, CPU, flex=True)]
    assert against == ["MultiheadAttention", "SDPA", "FlexAttention"]
    assert len(comparisons(GRID, CPU, flex=False)) == 2


def test_the_cases_are_the_promised_ones():
    causal = {f"causal, n = {n:,}": {} for n in (2048, 4096, 8192, 16_384, 32_768, 65_536)}
    assert {case.name: dict(case.targets) for case in settings()} == {
        **causal,
        "causal, n = 2,048": {"layer": 1.0},
        "causal, n = 8,192": {"layer": 2.0},
        "causal, n = 65,536": {"layer": 7.0},
        "LRA, w 8, r 32, n = 4,096": {"layer": 2.0},
        "LRA, w 1, r 254, n = 4,096": {"layer": 1.5},
        "LRA, w 8, r 32, n = 16,384": {},
        "bidirectional, n = 4,096": {"core": 5.0},
        "bidirectional, n = 16,384": {"core": 18.0},
        "grid, 56 × 56": {"layer": 2.0},
        "grid, 128 × 128": {"layer": 6.0},
        "grid, 256 × 256": {"layer": 20.0},
    }
    for case in settings():
        assert case.memory_target == (2.0 if case.name in causal else None)
        assert case.tflops_target == (250.0 if case.name == "causal, n = 8,192" else None)
        assert case.name not in causal or case.batch * case.tokens == 65_536


def test_without_a_gpu_the_error_is_clear(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "b.json")]) == 1
    assert capsys.readouterr().err == f"longshort: {NO_CUDA}\n"
    assert NO_CUDA.startswith("no CUDA device here; ") and not list(tmp_path.iterdir())


def test_options_choose_the_cases(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "bench_gpu", lambda cases, out, **options: asked.append((cases, out, options)))
    assert main(["--out", str(tmp_path / "b.json"), "--only", "GRID", "--repeats", "3", "--flex"]) == 0
    ((cases, out, options),) = asked
    assert [case.name for case in cases] == ["grid, 56 × 56", "grid, 128 × 128", "grid, 256 × 256"]
    assert out == tmp_path / "b.json" and options["repeats"] == 3 and options["flex"]


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--repeats", "0"], ["--unknown"]])
def test_wrong_use_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and capsys.readouterr().err


def test_interrupted_and_unwritable(monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "settings", lambda: [GRID])
    with monkeypatch.context() as patched:
        patched.setattr(gpu, "bench_gpu", interrupted)
        assert main(["--out", str(tmp_path / "b.json")]) == 130
    monkeypatch.setattr(gpu, "machine_line", lambda device: "")
    monkeypatch.setattr(report, "machine", lambda device: {})
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 2 and f"cannot write {tmp_path}: Is a directory" in capsys.readouterr().err
