"""Laws of the sequence and the grid layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longshort import GridLongShortAttention, LongShortAttention, Segments, Tiles
from longshort.nn.spec import FullAttention

SIZES = dict(window=st.integers(0, 20), rank=st.integers(0, 4), global_tokens=st.integers(0, 3))


def sequence_layer(window, rank, global_tokens, **keywords):
    torch.manual_seed(window)
    layer = LongShortAttention(12, 3, window=window, rank=rank, global_tokens=global_tokens, **keywords)
    return perturbed(layer.double())


def perturbed(layer):
    """Weights that are nowhere 0 or 1, so that a mistake shows."""
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5) if p.numel() else None
    return layer


@given(n=st.integers(1, 80), seed=st.integers(0, 99), **SIZES)
def test_padding_never_changes_real_tokens(n, seed, window, rank, global_tokens):
    """Not even NaN in it, in the output or in any gradient; and cutting it off changes nothing either."""
    window = window or (rank == 0)
    layer = sequence_layer(window, rank, global_tokens)
    torch.manual_seed(seed)
    x = torch.randn(2, global_tokens + n, 12, dtype=torch.float64)
    length = int(torch.randint(1, n + 1, ()))
    mask = torch.arange(global_tokens + n) < torch.tensor([[global_tokens + length], [0]])
    results = []
    for padding in (0.0, float("nan")):
        filled = x.masked_fill(~mask[..., None], padding).requires_grad_()
        layer.zero_grad()
        out = layer(filled, mask)
        out[mask].sum().backward()
        results.append([out.detach(), filled.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*results, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    real = global_tokens + length
    torch.testing.assert_close(results[0][0][:1, :real], layer(x[:1, :real]), rtol=0, atol=1e-10)
    torch.testing.assert_close(results[0][0][1], layer.out.bias.expand(global_tokens + n, -1))


def by_the_book(layer, x, sees, bias=None):
    """The layer in plain loops of thought: one softmax a query, written from the specification, one head at a time."""
    g, d = layer.global_tokens, layer.width // layer.heads
    q, k, v = layer.query(x), layer.norm.local(layer.key(x)), layer.norm.local(layer.value(x))
    weights = layer.rows(x[:, g:]).softmax(dim=1)
    rows_k, rows_v = [], []
    for h in range(layer.heads):
        p = weights[..., h * layer.rank : (h + 1) * layer.rank]
        rows_k.append(p.mT @ k[:, g:, h * d : (h + 1) * d])
        rows_v.append(p.mT @ v[:, g:, h * d : (h + 1) * d])
    rows_k, rows_v = (layer.norm.global_(torch.cat(r, dim=2)) for r in (rows_k, rows_v))
    heads = []
    for h in range(layer.heads):
        part = slice(h * d, (h + 1) * d)
        tokens = []
        for i in range(x.shape[1] - g):
            seen = [j for j in range(x.shape[1] - g) if sees(i, j)]
            keys = torch.cat([k[:, :g, part], k[:, g:, part][:, seen], rows_k[..., part]], dim=1)
            values = torch.cat([v[:, :g, part], v[:, g:, part][:, seen], rows_v[..., part]], dim=1)
            scores = (keys @ q[:, g + i, part, None]).squeeze(2) * d**-0.5
            if bias is not None:
                scores[:, g : g + len(seen)] += torch.stack([bias(h, i, j) for j in seen])
            tokens.append((scores.softmax(dim=1)[:, None] @ values).squeeze(1))
        out = torch.stack(tokens, dim=1)
        keys, values = (torch.cat([t[:, :g, part], out], dim=1) for t in (k, v))
        first = (q[:, :g, part] @ keys.mT * d**-0.5).softmax(dim=2) @ values
        heads.append(torch.cat([first, out], dim=1))
    return layer.out(torch.cat(heads, dim=2))


@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize("dual_norm", [True, False])
def test_sequence_layer_by_the_book(global_tokens, dual_norm):
    layer = sequence_layer(4, 2, global_tokens, dual_norm=dual_norm)
    x = torch.randn(2, global_tokens + 21, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_the_book(layer, x, Segments(4).sees), rtol=0, atol=1e-12)


@pytest.mark.parametrize("global_tokens", [0, 1, 2])
def test_grid_layer_by_the_book(global_tokens):
    torch.manual_seed(0)
    layer = GridLongShortAttention(12, 3, window=2, rank=2, relative_bias=True, global_tokens=global_tokens)
    layer = perturbed(layer.double())
    x = torch.randn(2, global_tokens + 15, 12, dtype=torch.float64)
    middle = layer.relative_bias.shape[1] // 2

    def bias(h, i, j):
        return layer.relative_bias[h, i // 5 - j // 5 + middle, i % 5 - j % 5 + middle]

    expected = by_the_book(layer, x, Tiles(2, 3, 5).sees, bias)
    torch.testing.assert_close(layer(x, size=(3, 5)), expected, rtol=0, atol=1e-12)


@given(height=st.integers(1, 12), width=st.integers(1, 12), window=st.integers(1, 6), rank=st.integers(0, 3))
def test_a_picture_and_its_transpose(height, width, window, rank):
    """Turning the grid over its diagonal turns the output, where the bias is turned as well."""
    torch.manual_seed(0)
    layer = GridLongShortAttention(12, 3, window=window, rank=rank, relative_bias=True).double()
    perturbed(layer)
    x = torch.randn(2, height, width, 12, dtype=torch.float64)
    out = layer(x.flatten(1, 2), size=(height, width)).unflatten(1, (height, width))
    with torch.no_grad():
        layer.relative_bias.copy_(layer.relative_bias.mT.clone())
    turned = layer(x.transpose(1, 2).flatten(1, 2), size=(width, height)).unflatten(1, (width, height))
    torch.testing.assert_close(turned.transpose(1, 2), out, rtol=0, atol=1e-10)


def test_the_grid_layer_takes_a_mask():
    torch.manual_seed(0)
    layer = perturbed(GridLongShortAttention(12, 3, window=4, rank=2).double())
    x = torch.randn(1, 6, 9, 12, dtype=torch.float64)
    mask = torch.zeros(1, 6, 9, dtype=torch.bool)
    mask[:, :6, :8] = True
    cut = layer(x[:, :, :8].flatten(1, 2), size=(6, 8)).unflatten(1, (6, 8))
    out = layer(x.flatten(1, 2), size=(6, 9), mask=mask.flatten(1)).unflatten(1, (6, 9))
    torch.testing.assert_close(out[:, :, :8], cut, rtol=0, atol=1e-12)


def test_parameters_have_their_names():
    names = {name for name, _ in LongShortAttention(12, 3, window=4, rank=2).named_parameters()}
    linear = {f"{name}.{part}" for name in ("query", "key", "value", "rows", "out") for part in ("weight", "bias")}
    assert names == linear | {f"norm.{name}.{part}" for name in ("local", "global_") for part in ("weight", "bias")}
    grid = {name for name, _ in GridLongShortAttention(12, 3, window=4, rank=2, relative_bias=True).named_parameters()}
    assert grid == names | {"relative_bias"}
    plain = {name for name, _ in LongShortAttention(12, 3, window=4, rank=2, dual_norm=False).named_parameters()}
    assert plain == linear


def test_dropout_acts_in_training_only():
    layer = sequence_layer(4, 2, 1, dropout=0.5)
    x = torch.randn(1, 40, 12, dtype=torch.float64)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_rotary_positions_in_a_window_over_all_are_those_of_full_attention():
    torch.manual_seed(0)
    ours = LongShortAttention(16, 2, window=40, rank=0, rotary=True, dual_norm=False).double()
    full = FullAttention(16, 2, rotary=True).double()
    full.load_state_dict({name: p for name, p in ours.state_dict().items() if not name.startswith(("rows", "norm"))})
    x = torch.randn(2, 33, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), full(x))
    plain = LongShortAttention(16, 2, window=40, rank=0, dual_norm=False).double()
    plain.load_state_dict(ours.state_dict())
    assert not torch.allclose(plain(x), ours(x))


def test_scores_of_rotary_positions_know_distances_alone():
    """A sequence that repeats itself is the same in all its periods."""
    torch.manual_seed(0)
    layer = LongShortAttention(16, 2, window=3, rank=0, rotary=True).double()
    y = layer(torch.randn(1, 6, 16, dtype=torch.float64).repeat(1, 5, 1))
    torch.testing.assert_close(y[:, 6:12], y[:, 12:18])


def test_rotary_positions_turn_pairs():
    with pytest.raises(ValueError, match="turn pairs of features, but heads are 5 wide"):
        LongShortAttention(10, 2, window=4, rank=2, rotary=True)
