"""Laws of the causal layer and its cache."""

import io
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longshort import CausalLongShortAttention


def layer_of(window=8, segment=4, rank=2, seed=0, **keywords):
    torch.manual_seed(seed)
    layer = CausalLongShortAttention(12, 3, window=window, segment=segment, rank=rank, **keywords).double()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5) if p.numel() else None
    return layer


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def in_blocks(layer, x, sizes):
    outs, cache, at = [], None, 0
    for size in sizes:
        y, cache = layer(x[:, at : at + size], cache)
        outs.append(y)
        at += size
    return torch.cat(outs, dim=1), cache


@st.composite
def cases(draw):
    segment, rank = draw(st.integers(1, 9)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["sliding", "segment"]))
    window = segment + draw(st.integers(0, 20)) if kind == "sliding" else draw(st.integers(1, 25))
    keywords = dict(kind=kind, positions=draw(st.booleans()), bias=draw(st.booleans()))
    return layer_of(window, segment, rank, **keywords), draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))


@given(cases())
def test_blocks_with_a_cache_equal_one_pass(case):
    layer, sizes = case
    x = randn(2, sum(sizes), 12)
    whole, expected = layer(x)
    out, cache = in_blocks(layer, x, sizes)
    torch.testing.assert_close(out, whole, rtol=0, atol=1e-10)
    assert cache.length == expected.length == x.shape[1]
    for name in ("k", "v", "k_global", "v_global", "logits"):
        torch.testing.assert_close(getattr(cache, name), getattr(expected, name), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["sliding", "segment"])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_token_by_token_equals_one_pass(kind, impl):
    layer = layer_of(kind=kind, impl=impl)
    x = randn(2, 45, 12)
    out, _ = in_blocks(layer, x, [1] * 45)
    torch.testing.assert_close(out, layer(x)[0], rtol=0, atol=1e-10)


@given(cases(), st.integers(0, 200))
def test_the_future_never_changes_the_past(case, cut):
    layer, sizes = case
    n = sum(sizes)
    cut = cut % n
    x = randn(1, n, 12)
    before = layer(x)[0][:, :cut]
    x[:, cut:] = randn(1, n - cut, 12)
    torch.testing.assert_close(layer(x)[0][:, :cut], before, rtol=0, atol=1e-11)


def test_the_past_is_seen_however_far():
    """Through the rows, at any distance; and not beyond the window where there are none."""
    x = randn(1, 300, 12)
    for rank, reaches in ((1, True), (0, False)):
        layer = layer_of(rank=rank)
        before = layer(x)[0][:, -1]
        other = x.clone()
        other[:, 3] += 1
        assert ((layer(other)[0][:, -1] - before).abs().max() > 1e-9) == reaches


def tensors(cache):
    return [t for t in vars(cache).values() if isinstance(t, torch.Tensor)]


def test_memory_bounds_the_cache():
    layer = layer_of(window=8, segment=4, rank=2, memory=20)
    x = randn(2, 133, 12)
    cache, sizes = None, []
    for block in x.split(7, dim=1):
        _, cache = layer(block, cache)
        held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(cache)}
        assert sum(held.values()) == cache.nbytes  # nothing more is kept alive
        sizes.append(cache.nbytes)
        assert cache.k.shape[2] <= 8 and cache.k_global.shape[2] <= 2 * 20 // 4
    assert max(sizes[10:]) <= max(sizes[:10])
    assert cache.length == 133 and cache.logits.shape[1] == 133 % 4


def test_bounded_memory_equals_a_text_that_starts_with_what_is_kept():
    """Rows older than `memory` are as if they had never been: recomputed with those rows taken out of the cache."""
    bounded, free = layer_of(memory=16), layer_of()
    x = randn(1, 100, 12)
    _, small = bounded(x[:, :60])
    _, full = free(x[:, :60])
    assert small.k_global.shape[2] == 2 * 16 // 4 and full.k_global.shape[2] == 2 * 60 // 4
    for memory in (0, 16, 19, 60, 1000):
        bounded.memory = memory
        _, cache = bounded(x[:, :60])
        y, _ = bounded(x[:, 60:], cache)
        rows = slice(max(0, full.k_global.shape[2] - 2 * (memory // 4)), None)
        cut = replace(full, k_global=full.k_global[:, :, rows], v_global=full.v_global[:, :, rows])
        torch.testing.assert_close(y, free(x[:, 60:], cut)[0], rtol=0, atol=1e-10)
        assert torch.allclose(y, free(x)[0][:, 60:], atol=1e-10) == (memory >= 60)


def test_the_cache_carries_no_gradient():
    layer = layer_of()
    x = randn(1, 40, 12).requires_grad_()
    _, cache = layer(x)
    assert not any(t.requires_grad for t in tensors(cache))
    y, _ = layer(randn(1, 9, 12), cache)
    assert torch.autograd.grad(y.sum(), x, allow_unused=True)[0] is None
    assert cache.detach().length == 40


def test_reorder_for_beam_search():
    layer = layer_of()
    x = randn(3, 30, 12)
    _, cache = layer(x)
    order = torch.tensor([2, 0, 2, 1])
    more = randn(4, 11, 12)
    y, _ = layer(more, cache.reorder(order))
    whole = layer(torch.cat([x[order], more], dim=1))[0][:, 30:]
    torch.testing.assert_close(y, whole, rtol=0, atol=1e-10)


def test_a_cache_can_be_saved():
    layer, x = layer_of(), randn(1, 30, 12)
    _, cache = layer(x)
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    assert torch.equal(layer(x, torch.load(file))[0], layer(x, cache)[0])


def test_a_cache_of_another_dtype_is_taken():
    layer = layer_of()
    x = randn(1, 30, 12)
    _, cache = layer(x)
    y, _ = layer(x, cache.to(torch.float32))
    torch.testing.assert_close(y, layer(x, cache)[0], rtol=0, atol=1e-4)


def test_parameters_have_their_names():
    names = {name for name, _ in layer_of().named_parameters() if name.startswith("positions")}
    assert names == {
        "positions.local.weight",
        "positions.rows.weight",
        "positions.rows.bias",
        "positions.content_bias",
        "positions.position_bias",
    }
    assert layer_of(positions=False).positions is None


def test_the_papers_attended_tokens():
    """512 of the window and 768 rows on average, for 8,192 tokens after 8,192 cached: the paper's 1280."""
    geometry = CausalLongShortAttention(8, 1, window=512, segment=16, rank=1).geometry
    rows = sum(geometry.rows_before(8192 + i) for i in range(8192)) / 8192
    assert 512 + rows == pytest.approx(1280, abs=1)
