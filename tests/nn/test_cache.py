"""Laws of bounded caches: what is forgotten was never there, and nobody can tell how much text went by."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from longshort import CausalLongShortAttention

POSITIONS = [True, "rotary", False]


def layer_of(window=8, segment=4, rank=2, **keywords):
    torch.manual_seed(0)
    layer = CausalLongShortAttention(12, 3, window=window, segment=segment, rank=rank, **keywords).double()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5) if p.numel() else None
    return layer.requires_grad_(False)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cut(cache, memory):
    """Rows beyond the last `memory` tokens, in whole segments, taken out by hand; the length stays the text's."""
    first = max(cache.k_global.shape[2] - memory // cache.geometry.segment * cache.geometry.rank, 0)
    return replace(cache, k_global=cache.k_global[:, :, first:], v_global=cache.v_global[:, :, first:])


@st.composite
def cases(draw):
    segment, rank = draw(st.integers(1, 7)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["sliding", "segment"]))
    window = segment + draw(st.integers(0, 12)) if kind == "sliding" else draw(st.integers(1, 13))
    return layer_of(window, segment, rank, kind=kind, positions=draw(st.sampled_from(POSITIONS)))


sizes = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@settings(max_examples=25)
@given(cases(), sizes, st.integers(0, 40))
def test_a_rebased_length_means_the_same(layer, sizes, memory):
    """Blocks go on from `last(memory)`, again and again, as from caches cut by hand that know the whole length."""
    ours = theirs = None
    for size in sizes:
        x = randn(1, size, 12)
        y, ours = layer(x, ours)
        expected, theirs = layer(x, theirs)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
        ours, theirs = ours.last(memory), cut(theirs, memory)
        assert torch.equal(ours.k, theirs.k) and torch.equal(ours.k_global, theirs.k_global)
    assert theirs.length == sum(sizes)


@pytest.mark.parametrize("kind", ["sliding", "segment"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("memory", [0, 3, 6, 17, 40])
def test_a_rebased_length_means_the_same_at_odd_lengths(kind, positions, memory):
    """Memory below the window, not in whole segments, and beyond; a window that is no whole number of segments."""
    layer = layer_of(window=7, kind=kind, positions=positions)
    for length in (1, 5, 28, 29, 63):
        _, cache = layer(randn(2, length, 12))
        more = randn(2, 33, 12)
        y, _ = layer(more, cache.last(memory))
        torch.testing.assert_close(y, layer(more, cut(cache, memory))[0], rtol=0, atol=1e-11)


def test_a_bounded_memory_is_a_mask():
    """Written out densely: of the past, a block's queries see the window and rows of the last segments kept."""
    layer, x, memory, start = layer_of(positions=False, memory=14), randn(1, 47, 12), 14, 30
    _, cache = layer(x[:, :start])
    y, _ = layer(x[:, start:], cache)

    def split(t):
        return t.unflatten(2, (3, 4)).transpose(1, 2)

    q, (k, v) = layer.query(x), layer.norm.local(layer.key(x), layer.value(x))
    weights = layer.rows(x)[:, :44].unflatten(1, (11, 4)).unflatten(3, (3, 2)).softmax(dim=2)  # [B, S, L, H, R]
    rows = [
        torch.einsum("bslhr,bslhd->bsrhd", weights, t[:, :44].reshape(1, 11, 4, 3, 4)).flatten(1, 2).flatten(2)
        for t in (k, v)
    ]
    k, v = (torch.cat(both, dim=1) for both in zip((k, v), layer.norm.global_(*rows), strict=True))
    t, j, row = torch.arange(start, 47)[:, None], torch.arange(47), torch.arange(22)
    first = (start // 4 - memory // 4) * 2
    seen = torch.cat([(j <= t) & (j > t - 8), (row // 2 < t // 4) & (row >= first)], dim=1)
    scores = (split(q)[:, :, start:] @ split(k).mT / 2).masked_fill(~seen, -torch.inf)
    expected = layer.out((scores.softmax(dim=3) @ split(v)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@settings(max_examples=15)
@given(cases(), st.integers(0, 20))
def test_a_full_cache_has_one_length(layer, memory):
    """However many blocks of whole windows and segments were read: compiled code is made for one length."""
    g, cache, seen = layer.geometry, None, []
    size = g.segment * g.window
    for _ in range(-(-memory // size) + 3):
        cache = layer(randn(1, size, 12), cache)[1].last(memory)
        seen.append((cache.length, cache.k.shape, cache.k_global.shape))
    assert seen[-1] == seen[-2]
    assert cache.length < max(memory, cache.k.shape[2]) + size


def test_the_least_length():
    layer = layer_of(window=8, segment=4, rank=2)
    _, cache = layer(randn(1, 1003, 12))
    assert [cache.last(memory).length for memory in (0, 8, 11, 12, 100, 1000, None)] == [
        11,
        11,
        11,
        15,
        103,
        1003,
        1003,
    ]
    _, cache = layer_of(window=6, segment=4, kind="segment")(randn(1, 1003, 12))
    assert [cache.last(memory).length for memory in (0, 16, 100)] == [19, 19, 103]  # 1003 less whole twelves
    _, cache = layer_of(rank=0)(randn(1, 1003, 12))
    assert cache.last(None).length == 11


def test_forgetting_frees_and_copies_nothing_in_vain():
    for heads in (1, 3):
        layer = CausalLongShortAttention(12, heads, window=8, segment=4, rank=2)
        _, cache = layer(torch.randn(1, 60, 12))
        same, less = cache.last(60), cache.last(20)
        assert same.k_global is cache.k_global and same.v_global is cache.v_global
        for t in (less.k_global, less.v_global):
            assert t.is_contiguous() and t.shape[2] == 10
            assert t.untyped_storage().nbytes() == t.numel() * 4  # nothing of the others stays in memory


def test_a_negative_memory_is_refused():
    _, cache = layer_of()(randn(1, 9, 12))
    with pytest.raises(ValueError, match="memory must not be negative, got -1"):
        cache.last(-1)


@settings(max_examples=40)
@given(cases(), st.integers(1, 40), st.integers(0, 40), sizes, st.sampled_from(["auto", "chunked"]), st.booleans())
def test_a_filled_cache_means_the_same(layer, prompt, memory, sizes, impl, bounded):
    layer.impl, layer.memory = impl, memory if bounded else None
    _, ours = layer(randn(2, prompt, 12))
    theirs = ours.last(memory)
    ours = ours.filled(memory)
    for size in sizes:
        x = randn(2, size, 12)
        y, ours = layer(x, ours)
        expected, theirs = layer(x, theirs)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
        ours, theirs = ours.last(memory), theirs.last(memory)


@pytest.mark.parametrize("kind", ["sliding", "segment"])
@pytest.mark.parametrize("prompt", [1, 5, 30, 200])
def test_a_filled_cache_has_its_shapes_from_the_start(kind, prompt):
    layer, memory = layer_of(kind=kind), 64
    cache = layer(randn(1, prompt, 12))[1].filled(memory)
    kinds = []
    for _ in range(3 * 8):
        kinds.append((cache.k.shape, cache.k_global.shape, cache.logits.shape, cache.length))
        cache = layer(randn(1, 1, 12), cache)[1].last(memory)
    period = 4 if kind == "sliding" else 8  # a segment; or what segments and windows have in common
    assert kinds[period:] == kinds[:-period] and len(set(kinds)) == period


@pytest.mark.parametrize("name, size", [("mask", 8), ("mask_global", 4)])
def test_one_mask_alone_is_a_mask(name, size):
    layer, x = layer_of(), randn(1, 3, 12)
    _, cache = layer(randn(1, 8, 12))
    y, _ = layer(x, cache)
    for seen in (True, False):
        mask = torch.full((1, size), seen)
        made, after = layer(x, replace(cache, **{name: mask}))
        assert torch.allclose(made, y) == seen and getattr(after, name) is not None


def test_a_filled_cache_follows_its_sequences():
    """Masks are reordered and moved with the rest, and stay masks in any dtype."""
    layer = layer_of()
    cache = layer(randn(2, 5, 12))[1].filled(32)
    cache = replace(cache, mask=cache.mask & torch.tensor([[True], [False]]))
    swapped = cache.reorder(torch.tensor([1, 0])).to(torch.float32)
    assert swapped.mask.dtype == torch.bool and torch.equal(swapped.mask, cache.mask.flip(0))
    assert swapped.k.dtype == torch.float32
    bare = replace(cache, mask=None, mask_global=None)
    assert cache.nbytes - bare.nbytes == cache.mask.nbytes + cache.mask_global.nbytes == 2 * (8 + 16)
