"""The demo, in small: it trains, writes, compares and draws; again, it only shows."""

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from longshort.lab import demo
from longshort.lab.data.source import FileSource
from longshort.lab.recipes import charlm


@pytest.fixture
def small(monkeypatch, tmp_path):
    (tmp_path / "text.py").write_text("def double(number):\n    return 2 * number\n\n\n" * 300)
    run = charlm.demo()
    task = replace(run.task, source=FileSource(tmp_path / "text.py"), length=64, sequences=4)
    run = replace(run, task=task, steps=4, model=replace(run.model, layers=2, width=32, feedforward=64))
    monkeypatch.setattr(demo, "recipe", lambda: run)
    monkeypatch.setattr(demo, "LETTERS", 20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path / "out"
    torch.set_num_threads(threads)


def test_it_trains_and_shows_what_it_learned(small):
    console = Console(file=io.StringIO(), width=200)
    paths = demo.demo(small, console=console)
    printed = console.file.getvalue()
    assert all(path.read_bytes().startswith(b"\x89PNG") and str(path) in printed for path in paths)
    for words in ("step 4 of 4", demo.PROMPT.decode(), "this model", "gzip -9", "bz2 -9", "longshort generate"):
        assert words in printed
    again = Console(file=io.StringIO(), width=200)
    demo.demo(small, console=again)
    assert "finished before" in again.file.getvalue() and "step 4 of 4" not in again.file.getvalue()
    # the same sample and the same bits
    assert again.file.getvalue().split("a sample")[1] == printed.split("a sample")[1]
