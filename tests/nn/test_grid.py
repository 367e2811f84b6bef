"""Full attention over a grid: its biases belong to pairs of tokens, and stretch to other grids."""

import pytest
import torch
from torch import nn

from longshort import GridLongShortAttention
from longshort.nn.grid import GridFullAttention, of_pairs, offsets, resized

SIZE = (3, 4)


def layer_of(global_tokens, size=SIZE, seed=0):
    torch.manual_seed(seed)
    layer = GridFullAttention(8, 2, size=size, global_tokens=global_tokens).double()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)
    return layer


def test_each_pair_has_the_bias_of_its_offset():
    table = torch.randn(2, *offsets(SIZE))
    pairs = of_pairs(table, SIZE)
    for i in range(12):
        for j in range(12):
            assert torch.equal(pairs[:, i, j], table[:, i // 4 - j // 4 + 2, i % 4 - j % 4 + 3])


@pytest.mark.parametrize("global_tokens", [0, 2])
def test_it_is_a_softmax_over_all(global_tokens):
    layer, n = layer_of(global_tokens), global_tokens + 12
    x = torch.randn(2, n, 8, dtype=torch.double)
    q, k, v = (p(x).unflatten(2, (2, 4)).transpose(1, 2) for p in (layer.query, layer.key, layer.value))
    scores = q @ k.mT / 2
    for i in range(n):
        for j in range(n):
            a, b = i - global_tokens, j - global_tokens
            if a < 0 and b < 0:
                bias = layer.among_global_bias[:, i, j]
            elif a < 0:
                bias = layer.from_global_bias[:, i]
            elif b < 0:
                bias = layer.to_global_bias[:, j]
            else:
                bias = layer.relative_bias[:, a // 4 - b // 4 + 2, a % 4 - b % 4 + 3]
            scores[:, :, i, j] += bias
    expected = layer.out((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, SIZE), expected, atol=1e-12, rtol=0)


def test_a_window_over_all_without_rows_is_the_same():
    """The long-short layer without DualLN, given the same weights and the middle of a larger table."""
    full = layer_of(0)
    windowed = GridLongShortAttention(8, 2, window=4, rank=0, relative_bias=True, dual_norm=False).double()
    weights = {n: p for n, p in full.state_dict().items() if n != "relative_bias"}
    windowed.load_state_dict(weights, strict=False)
    middle = windowed.relative_bias.shape[1] // 2
    windowed.relative_bias.data[:, middle - 2 : middle + 3, middle - 3 : middle + 4] = full.relative_bias
    x = torch.randn(2, 12, 8, dtype=torch.double)
    torch.testing.assert_close(windowed(x, SIZE), full(x, SIZE), atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [(5, 4), (1, 1), (2, 9)])
def test_another_grid_keeps_the_middle_of_the_table(size):
    table = torch.randn(2, *offsets(SIZE))
    made = resized(table, offsets(size))
    assert made.shape == (2, *offsets(size))
    torch.testing.assert_close(made[:, size[0] - 1, size[1] - 1], table[:, 2, 3])
    layer = layer_of(1)
    assert layer(torch.randn(2, 1 + size[0] * size[1], 8, dtype=torch.double), size).isfinite().all()
    assert resized(table, offsets(SIZE)) is table


def test_interpolation_is_pytorchs():
    table = torch.randn(2, 5, 7, dtype=torch.double)
    expected = torch.nn.functional.interpolate(table[None], size=(9, 3), mode="bicubic")[0]
    torch.testing.assert_close(resized(table, (9, 3)), expected, atol=1e-12, rtol=0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="make 13 tokens, but x has 12"):
        layer_of(1)(torch.zeros(1, 12, 8, dtype=torch.double), SIZE)
    with pytest.raises(ValueError, match="not divisible by heads 3"):
        GridFullAttention(8, 3)
