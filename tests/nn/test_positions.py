"""Laws of positions: rotary ones by their definition, distances alone, and kept tables that are never stale."""

import copy
import io
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call

from longshort import CausalLongShortAttention


def layer_of(positions, window=8, segment=4, rank=2, dtype=torch.float64, **keywords):
    torch.manual_seed(0)
    layer = CausalLongShortAttention(
        16, 2, window=window, segment=segment, rank=rank, positions=positions, **keywords
    ).to(dtype)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5) if p.numel() else None
    return layer


def randn(n, dtype=torch.float64, batch=2):
    return torch.randn(batch, n, 16, dtype=torch.float64).to(dtype)


def complex_pairs(t):
    """[B, N, C] as [B, H, N, D / 2] complex numbers, of features i and i + D / 2 of a head."""
    a, b = t.unflatten(2, (2, 8)).transpose(1, 2).double().chunk(2, dim=3)
    return torch.complex(a, b)


def by_definition(layer, x):
    """Each pair of a query at place p and a key at place p' is scored by the angles of p - p' alone."""
    g, n = layer.geometry, x.shape[1]
    q, (k, v) = layer.query(x), layer.norm.local(layer.key(x), layer.value(x))
    k_rows, v_rows, places = [], [], []
    for s in range(n // g.segment):
        part = slice(s * g.segment, (s + 1) * g.segment)
        weights = layer.rows(x)[:, part].unflatten(2, (2, g.rank)).softmax(dim=1)  # [B, L, H, R]
        for i in range(g.rank):
            for t, rows in ((k, k_rows), (v, v_rows)):
                rows.append((weights[..., i, None] * t[:, part].unflatten(2, (2, 8))).sum(dim=1).flatten(1))
            places.append(s * g.segment + (i + 1 / 2) * g.segment / g.rank - 1 / 2)
    if places:
        rows = layer.norm.global_(torch.stack(k_rows, dim=1), torch.stack(v_rows, dim=1))
        k, v = (torch.cat([t, far], dim=1) for t, far in zip((k, v), rows, strict=True))
    places = torch.tensor([*range(n), *places], dtype=torch.float64)
    frequencies = 10_000 ** -(torch.arange(4, dtype=torch.float64) / 4)
    distances = torch.arange(n, dtype=torch.float64)[:, None] - places  # [N, N + R]
    turns = torch.polar(torch.ones(()).double(), distances[..., None] * frequencies)
    scores = torch.einsum("bhnd,bhmd,nmd->bhnm", complex_pairs(q), complex_pairs(k).conj(), turns).real * 8**-0.5
    t, j = torch.arange(n)[:, None], torch.arange(len(places) - n)
    seen = torch.cat([g.sees(t, torch.arange(n)), g.sees_row(t, j)], dim=1)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=3)
    out = weights @ v.double().unflatten(2, (2, 8)).transpose(1, 2)
    return layer.out(out.transpose(1, 2).flatten(2).to(x.dtype))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("segment, rank", [(4, 1), (4, 2), (4, 3), (5, 2), (4, 0)])
def test_rotary_is_its_definition(segment, rank, impl, dtype, tolerance):
    layer, x = layer_of("rotary", segment=segment, rank=rank, dtype=dtype, impl=impl), randn(37, dtype)
    torch.testing.assert_close(layer(x)[0], by_definition(layer, x), rtol=0, atol=tolerance)


@pytest.mark.parametrize("sizes", [[20, 17], [1] * 37], ids=len)
def test_rotary_in_blocks_is_its_definition(sizes):
    layer, x = layer_of("rotary", rank=3), randn(37)
    outs, cache = [], None
    for block in x.split(sizes, dim=1):
        y, cache = layer(block, cache)
        outs.append(y)
    torch.testing.assert_close(torch.cat(outs, dim=1), by_definition(layer, x), rtol=0, atol=1e-12)


def forgotten(layer, x, length):
    """The cache of a text of so many tokens of which nothing is kept."""
    cache = layer(x[:, :4])[1]
    nothing = {name: getattr(cache, name)[:, :, :0] for name in ("k", "v", "k_global", "v_global")}
    return replace(cache, **nothing, logits=cache.logits[:, :0], length=length)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-11), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("positions", ["rotary", True, False])
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_forgotten_prefix_of_any_length_changes_nothing(positions, rank, dtype, tolerance):
    layer, x = layer_of(positions, rank=rank, dtype=dtype), randn(30, dtype)
    expected, _ = layer(x)
    for segments in (1, 7, 12_345, 10**8):
        y, _ = layer(x, forgotten(layer, x, 4 * segments))
        torch.testing.assert_close(y, expected, rtol=0, atol=tolerance)


def test_rotary_positions_matter():
    layer, x = layer_of("rotary"), randn(30)
    without = layer_of(False)
    without.load_state_dict(layer.state_dict())
    assert not torch.allclose(layer(x)[0], without(x)[0], atol=1e-3)


# Tables of Transformer-XL's positions stay with the cache where no gradient is wanted.


@pytest.fixture
def layer():
    return layer_of(True)


@pytest.fixture
def made(layer, monkeypatch):
    """The rows of each table made."""
    made, forward = [], type(layer.positions).forward

    def counted(self, span, rows, dtype):
        made.append(rows)
        return forward(self, span, rows, dtype)

    monkeypatch.setattr(type(layer.positions), "forward", counted)
    return made


def read(layer, x, cache=None):
    """Token by token."""
    outs = []
    for token in x.split(1, dim=1):
        y, cache = layer(token, cache)
        outs.append(y)
    return torch.cat(outs, dim=1), cache


def test_without_a_gradient_tables_are_made_once(layer, made):
    x = randn(40)
    expected = layer(x)[0].detach()
    assert made == [20]
    with torch.no_grad():
        torch.testing.assert_close(read(layer, x)[0], expected, rtol=0, atol=1e-11)
    assert made[1:] == [256]  # with room for many rows


def test_kept_tables_grow_with_the_rows(layer, made, monkeypatch):
    monkeypatch.setattr("longshort.nn.causal.ROOM", 4)
    x = randn(40)
    with torch.no_grad():
        out, _ = read(layer, x)
    assert made == [4, 8, 12, 16, 20]
    torch.testing.assert_close(out, layer(x)[0], rtol=0, atol=1e-11)


def test_with_a_gradient_no_table_is_kept(layer, made):
    x = randn(12)
    with torch.no_grad():
        _, cache = read(layer, x)
    made.clear()
    layer(x)
    y, cache = layer(x, cache)
    y.sum().backward()
    assert made == [6, 12] and layer.positions.rows.weight.grad.any() and cache.tables is None


def update(layer):
    layer(randn(30))[0].square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def load(layer):
    layer.load_state_dict({name: -t for name, t in layer.state_dict().items()})


def round_off(layer):
    layer.bfloat16().double()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", [update, load, round_off])
def test_changed_weights_make_new_tables(layer, change, mode):
    x = randn(14)
    with mode():
        before, _ = read(layer, x)
    change(layer)
    with mode():
        after, _ = read(layer, x)
    torch.testing.assert_close(after, layer(x)[0].detach(), rtol=0, atol=1e-11)
    assert not torch.allclose(after, before, atol=1e-4)


def test_weights_of_one_call_leave_no_tables_behind(layer):
    x = randn(30)
    for scale in (1.0, 0.5, -1.0):
        weights = {name: p.detach() * scale for name, p in layer.named_parameters()}
        with torch.no_grad():
            y, _ = functional_call(layer, weights, (x,))
        torch.testing.assert_close(y, functional_call(layer, weights, (x,))[0], rtol=0, atol=1e-11)


def test_a_cache_with_tables_goes_wherever_one_without_goes(layer):
    """To a pass with gradients, another dtype, another order, a file, another device."""
    x, more, order = randn(30), randn(9), torch.tensor([1, 0, 1])
    with torch.no_grad():
        _, cache = read(layer, x)
        expected = layer(torch.cat([x, more], dim=1))[0][:, 30:]
    assert cache.tables is not None
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode():
            for same in (cache, cache.detach(), torch.load(io.BytesIO(file.getvalue()), weights_only=True)):
                torch.testing.assert_close(layer(more, same)[0], expected, rtol=0, atol=1e-11)
            y, _ = layer(more[order], cache.reorder(order))
            torch.testing.assert_close(y, expected[order], rtol=0, atol=1e-11)
            y, _ = copy.deepcopy(layer).float()(more.float(), cache.to(torch.float32))
            torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-4)
            assert layer.to("meta")(more.to("meta"), cache.to("meta"))[0].shape == expected.shape
            layer = layer_of(True)


def test_one_graph_for_blocks_of_any_length():
    """Of whole segments, after the first block, which has no cache."""
    torch._dynamo.reset()
    layer, counter = layer_of("rotary"), CompileCounter()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    ours = theirs = None
    for n in (20, 16, 24, 12):
        x = randn(n)
        y, ours = compiled(x, ours)
        expected, theirs = layer(x, theirs)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-11)
    assert counter.frame_count == 2
    torch._dynamo.reset()
