"""The command line: what it says, and how it ends."""

import sys

import pytest
import torch

from longshort.bench import attention, demo, gpu
from longshort.bench.lengths import Timed
from longshort.cli import main
from longshort.version import VERSION

BENCH = ["bench", "attention", "--device", "cpu"]


@pytest.fixture
def instant(monkeypatch):
    """Times without the timing."""
    monkeypatch.setattr(demo, "time_over_lengths", lambda lengths: iter([Timed(n, 1.0, 1.0 * n) for n in lengths]))
    monkeypatch.setattr(attention, "measure", lambda case, repeats: attention.Measured(case.name, 1.0, repeats, 1.0))


@pytest.fixture
def below_a_file(tmp_path):
    """A path that nobody can write, root included."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "below" / "out"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["demo", "bench", "longshort bench attention", "--version"]),
        (["demo", "--help"], ["--out", "out/demo", "folder"]),
        (
            ["bench", "--help"],
            ["attention", "--device", "--out", "--repeats", "--only", "--flex", "median", "out/bench_attention.json"],
        ),
    ],
)
def test_help(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert [word for word in words if word not in printed] == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["bench"], ["bench", "nothing"], [*BENCH, "--repeats", "0"], [*BENCH, "--only", "nobody"]]
)
def test_wrong_use_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_demo_writes_both_figures_and_says_where(instant, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "a" / "b")]) == 0
    printed = capsys.readouterr().out
    for name in ("visibility.png", "lengths.png"):
        path = tmp_path / "a" / "b" / name
        assert path.read_bytes().startswith(b"\x89PNG") and str(path) in printed
    assert "8,192" in printed and "8192.0×" in printed


def test_bench_takes_its_options(instant, tmp_path, capsys):
    assert main([*BENCH, "--out", str(tmp_path / "b.json"), "--repeats", "7"]) == 0
    assert "7.00×" in capsys.readouterr().out and (tmp_path / "b.json").exists()


def test_bench_measures_the_cases_asked_for(instant, tmp_path, capsys):
    assert main([*BENCH, "--out", str(tmp_path / "b.json"), "--only", "grid"]) == 0
    printed = capsys.readouterr().out
    assert "grid" in printed and "causal" not in printed


@pytest.mark.parametrize(("device", "gpu_here"), [("auto", True), ("cuda", True), ("auto", False), ("cuda", False)])
def test_bench_takes_the_gpu_that_is_there(device, gpu_here, instant, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    monkeypatch.setattr(gpu, "bench_gpu", lambda cases, out, **options: asked.append((len(cases), options["repeats"])))
    arguments = ["bench", "attention", "--device", device, "--out", str(tmp_path / "b.json")]
    if device == "cuda" and not gpu_here:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 1 and asked == []
        assert capsys.readouterr().err.startswith("longshort: no CUDA device here; ")
    else:
        assert main(arguments) == 0
        assert asked == ([(14, gpu.REPEATS)] if gpu_here else [])
        assert (tmp_path / "b.json").exists() is not gpu_here


@pytest.mark.parametrize("command", [["demo"], BENCH])
def test_unwritable_folder(command, instant, below_a_file, capsys):
    assert main([*command, "--out", str(below_a_file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("longshort: cannot write") and str(below_a_file.parent) in error
    assert len(error.splitlines()) == 1


def test_interrupted_demo_keeps_its_files(tmp_path, monkeypatch, capsys):
    def interrupted(lengths):
        yield Timed(512, 1.0, 2.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "time_over_lengths", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["visibility.png"]
    assert capsys.readouterr().err == "longshort: interrupted\n"


def test_interrupted_bench_prints_what_it_measured(tmp_path, monkeypatch, capsys):
    def measure(case, repeats):
        if "8192" in case.name:
            raise KeyboardInterrupt
        return attention.Measured(case.name, 2.0, 7.0, case.target)

    monkeypatch.setattr(attention, "measure", measure)
    assert main([*BENCH, "--out", str(tmp_path / "b.json")]) == 130
    printed = capsys.readouterr()
    assert "n = 4096" in printed.out and "3.50×" in printed.out and "8192" not in printed.out
    assert printed.err == "longshort: interrupted\n"


@pytest.mark.parametrize("package", ["tyro", "rich", "matplotlib"])
def test_missing_package_names_the_extra(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo"]) == 1
    error = capsys.readouterr().err
    assert error == f"longshort: {package} is not installed; pip install 'longshort[bench]'\n"
