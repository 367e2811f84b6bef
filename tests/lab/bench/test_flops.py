"""Pairs are counted as the geometries see them, products as the passes need them."""

import pytest
import torch

from longshort.geometry import Causal, Segments, Tiles
from longshort.lab.bench.flops import products, visible_pairs
from longshort.lab.bench.settings import settings

GEOMETRIES = [
    *((Segments(window), tokens, rows) for window in (0, 1, 3, 4) for tokens, rows in ((1, 1), (11, 0), (16, 5))),
    *((Causal(window, 3, 2), tokens, tokens // 3 * 2) for window in (3, 4, 7) for tokens in (1, 3, 20)),
    *((Causal(window, 4, 1, "segment"), tokens, tokens // 4) for window in (1, 3, 8) for tokens in (1, 9, 20)),
    (Causal(4, 4, 0), 10, 0),
    *((Tiles(window, 5, 7), 35, 3) for window in (0, 1, 2, 3, 9)),
]


@pytest.mark.parametrize(("geometry", "tokens", "rows"), GEOMETRIES, ids=str)
def test_pairs_are_those_the_geometry_sees(geometry, tokens, rows):
    i, j, row = torch.arange(tokens)[:, None], torch.arange(tokens), torch.arange(rows)
    local, far = geometry.sees(i, j), geometry.sees_row(i, row)
    assert visible_pairs(geometry, tokens, rows) == int(local.sum()) + int(far.sum())


@pytest.mark.parametrize(
    ("which", "positions", "expected"),
    [
        ("forward", False, 2),
        ("forward", True, 3),
        ("forward + backward", False, 7),
        ("forward + backward", True, 11),
        ("forward + backward, CUDA graph", False, 7),
    ],
)
def test_products(which, positions, expected):
    assert products(which, positions=positions) == expected


def test_flops_of_the_paper_setting():
    """8,192 tokens: a triangle of 512, then 512 each, and the rows of 0, 1, ... 511 segments, 16 queries each."""
    case = {case.name: case for case in settings()}["causal, n = 8,192"]
    pairs = 512 * 513 // 2 + (8192 - 512) * 512 + 16 * (511 * 512 // 2)
    assert case.flops("forward") == 8 * 8 * pairs * 3 * 2 * 64
    assert case.flops("forward + backward") == 8 * 8 * pairs * 11 * 2 * 64


def test_grid_has_no_position_products():
    case = {case.name: case for case in settings()}["grid, 56 × 56"]
    pairs = visible_pairs(case.geometry, case.tokens, case.rows)
    assert case.flops("forward") == 128 * 3 * pairs * 2 * 2 * 32
