"""Figures of the vision models that need no training: the paper's, as far as they can come out."""

import json

import pytest
import torch
from pictures import VIL

from longshort.lab.bench.macs import count
from longshort.lab.bench.vision_macs import LINES, Line, bench_vision_macs, beyond_borders, figures

TOLERANCE = {"ViL": 1e-3, "CvT-13, 384": 0.03, "CvT*-LS-21, 448": 0.02}  # the paper's own count is not to be had


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_the_papers_table(line):
    found = figures(line)
    near = next((share for name, share in TOLERANCE.items() if line.name.startswith(name)), 0.012)
    assert found["macs_as_released"] == pytest.approx(line.macs, rel=near)
    if line.name.startswith("ViL"):  # to both of its digits
        assert f"{found['macs_as_released']:.2f}" == f"{line.macs:.2f}"
    assert found["macs"] <= found["macs_as_released"] + 0.01
    # 21S has four blocks of 1.8M more than 17, where the paper's two figures are 6.4M apart
    assert found["parameters"] == pytest.approx(line.parameters, rel=0.022 if "21S" in line.name else 0.012)


def test_beyond_borders_are_the_keys_that_are_not_there():
    """A grid of one window: it would reach over all four sides."""
    model = VIL.everywhere().build()
    grids, reach, window = (3, 2, 1, 1), 1, 3
    expected = 0
    for grid, stage in zip(grids, VIL.stages, strict=True):
        keys = (window + 2 * reach) ** 2 - grid**2
        cls = grid**2 if stage.global_tokens == 1 else 0
        expected += stage.blocks * stage.width * (2 * grid**2 * keys - cls)
    assert beyond_borders(model, 12) == expected


def test_the_table_is_printed_and_written(tmp_path, capsys):
    from rich.console import Console

    line = Line("tiny", VIL.build, 32, macs=1.0, parameters=2.0)
    bench_vision_macs([line], tmp_path / "macs.json", console=Console(width=150))
    (found,) = json.loads((tmp_path / "macs.json").read_text())["models"]
    assert found["macs"] == count(VIL.build(), torch.zeros(1, 3, 32, 32)) / 1e9
    assert "tiny" in capsys.readouterr().out
