"""How much the models of the Long Range Arena compute: the counted table, and the file of it."""

import io
import json

import pytest
from rich.console import Console

from longshort.lab.bench import lra
from longshort.lab.bench.lra import bench_macs, counted, macs_of
from longshort.lab.recipes.lra_table import LINES

BY_NAME = {line.name: line for line in LINES}


def bench(names, out):
    console = Console(file=io.StringIO(), width=150)
    return bench_macs([BY_NAME[name] for name in names], out, console=console), console.file.getvalue()


def test_lines_with_a_number_in_the_paper_are_counted():
    assert {line.name for line in counted()} == {name for name, line in BY_NAME.items() if line.macs is not None}
    assert "listops/8,32" in {line.name for line in counted()} and len(counted()) < len(LINES)


def test_a_pair_is_two_texts():
    """But for the head."""
    one, two = (macs_of(BY_NAME[name]) for name in ("text_paper/8,32", "retrieval/8,32"))
    assert two == pytest.approx(2 * one, rel=1e-4) and two != one


def test_the_table_has_both_numbers_and_says_where_they_differ(tmp_path):
    out = tmp_path / "a" / "macs.json"
    facts, printed = bench(["listops/8,32", "text_paper/0,128"], out)
    same, other = (line for line in printed.splitlines() if "0.199" in line or "0.684" in line)
    assert "listops" in same and "8,32" in same and "0.20" in same and "differs" not in same
    assert "text_paper" in other and "0.69" in other and "differs" in other
    assert str(out) in printed
    assert json.loads(out.read_text()) == {"lines": facts}
    assert [(fact["line"], fact["paper"]) for fact in facts] == [("listops/8,32", 0.2), ("text_paper/0,128", 0.69)]
    assert [fact["counted"] for fact in facts] == pytest.approx([0.1993, 0.6840], abs=1e-4)


def test_what_was_counted_before_an_interruption_is_in_the_file(tmp_path, monkeypatch):
    def interrupted(line):
        if line.attention == "full":
            raise KeyboardInterrupt
        return 0.25

    monkeypatch.setattr(lra, "macs_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(["listops/8,32", "listops/full", "listops/0,4"], tmp_path / "macs.json")
    found = json.loads((tmp_path / "macs.json").read_text())["lines"]
    assert found == [{"line": "listops/8,32", "paper": 0.2, "counted": 0.25}]
