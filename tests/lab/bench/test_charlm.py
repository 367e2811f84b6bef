"""The language model's benchmark: every case of every model, in a file and a table; on a GPU in earnest."""

import io
import json

import pytest
import torch
from rich.console import Console

from longshort.lab.bench import charlm
from longshort.lab.bench.charlm import Generation, Row, Training, bench_charlm, cases, table_of
from longshort.lab.bench.gpt import GPT
from longshort.models.charlm import PRESETS, CharLM, CharLMConfig

CONFIG = CharLMConfig(layers=1, width=16, heads=2, feedforward=16, window=8, segment=4)


def test_all_is_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(charlm, "WARM", 2)
    monkeypatch.setattr(charlm, "WRITTEN", 3)
    console = Console(file=io.StringIO(), width=200)
    rows = bench_charlm(
        [Training(16, 2, CONFIG), Generation((8, 16), CONFIG)],
        tmp_path / "a" / "b.json",
        repeats=1,
        console=console,
        device="cpu",
    )
    assert [row.model for row in rows[:3]] == ["GPT, SDPA", "long-short, the paper's", "long-short, rotary"]
    assert len(rows) == 7 and all(row.ms > 0 for row in rows)
    assert len(json.loads((tmp_path / "a" / "b.json").read_text())["rows"]) == 7
    assert str(tmp_path / "a" / "b.json") in console.file.getvalue()


def test_the_cache_is_full_when_it_is_timed():
    model = CharLM(CharLMConfig(**{**vars(CONFIG), "memory": 16}))
    seen = []
    model.blocks[0].attention.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    work = Training(16, 2, CONFIG).work(model, torch.device("cpu"))
    work.call()
    assert seen[-1].k_global.shape[2] == 16 // 4 and seen[-1].k.shape[2] == 8


def test_ratios_are_to_the_first_of_a_case():
    rows = [Row("a", "x", 4.0, 2.0, 1.0), Row("a", "y", 2.0, 4.0, 1.0), Row("b", "z", 1.0, None, None)]
    console = Console(file=io.StringIO(), width=200)
    console.print(table_of(rows))
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert [line.count("×") for line in lines] == [2, 2, 1]
    assert "2.00×" in lines[1] and "0.50×" in lines[1]


def test_the_models_compared_are_of_one_size():
    gpt, ours = GPT(PRESETS["small"], 2_048), CharLM(PRESETS["small"])
    sizes = [sum(p.numel() for p in model.blocks.parameters()) for model in (gpt, ours)]
    assert 0.8 < sizes[0] / sizes[1] <= 1.0  # ours has two more matrices a layer, for positions


def test_gpt_sees_no_future():
    torch.manual_seed(0)
    gpt, tokens = GPT(CONFIG, 16).eval(), torch.randint(0, 256, (1, 16))
    other = tokens.clone()
    other[:, 9:] = 0
    torch.testing.assert_close(gpt(tokens)[:, :9], gpt(other)[:, :9])


def test_the_cases_are_those_of_the_readme():
    assert [case.name for case in cases()] == ["training step, 2,048 × 32", "training step, 8,192 × 16", "generation"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    from longshort.lab.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["bench", "charlm"])
    assert ended.value.code == 1 and "no CUDA device here" in capsys.readouterr().err
