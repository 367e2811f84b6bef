"""The fused kernels are the reference: output and every gradient, over odd sizes, masks, caches, tables and dropout.

On a machine without a GPU they run in Triton's interpreter, hence the small sizes. float32 is compared with float64; 16
bits by the rule that the error is at most twice that of plain PyTorch in the same dtype.
"""

import copy
import dataclasses

import drawn
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layers import output
from torch.utils.checkpoint import checkpoint

pytest.importorskip("triton")

from longshort import (
    Causal,
    CausalLongShortAttention,
    GridLongShortAttention,
    LongShortAttention,
    RelativePositions,
    Segments,
    Tiles,
    long_short_attention,
)
from longshort.ops.fused import why_not

BATCH, HEADS = 2, 2


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def by_token(batch, tokens, width):
    """[B, H, N, D] as the layers have it: a view of [B, N, H·D]."""
    return randn(batch, tokens, HEADS, width).transpose(1, 2)


def a_call(geometry, queries, rows, width, keys=None, **keywords):
    keys = queries if keys is None else keys
    q, k, v = (by_token(BATCH, n, width) for n in (queries, keys, keys))
    k_global, v_global = (by_token(BATCH, rows, width) for _ in range(2))
    return drawn.Call([q, k, v, k_global, v_global], {"geometry": geometry, **keywords})


def tables(geometry, rows, width):
    biases = [randn(HEADS, width) for _ in range(2)]
    near, far = (randn(n, HEADS, width).transpose(0, 1) for n in (geometry.span + 1, rows + 2))
    return RelativePositions(*biases, near, far)


def mask(length, kept=0.7):
    return torch.rand(BATCH, length) < kept


def in_dtype(call, dtype):
    """The same call; its tensors keep their strides and come to require gradients."""

    def leaf(t):
        return t.detach().to(dtype).requires_grad_()

    keywords = dict(call.keywords)
    if keywords.get("positions") is not None:
        keywords["positions"] = RelativePositions(*(leaf(t) for t in keywords["positions"]))
    if keywords.get("bias") is not None:
        keywords["bias"] = leaf(keywords["bias"])
    return dataclasses.replace(call, tensors=[leaf(t) for t in call.tensors], keywords=keywords)


def gradients(call, impl, dtype):
    """The output and the gradients of all tensors, in float64."""
    call = in_dtype(call, dtype)
    leaves = call.leaves()
    out = call(impl)
    torch.manual_seed(1)
    cotangent = torch.randn(out.shape, dtype=torch.float64).to(dtype)
    grads = torch.autograd.grad(out, leaves, cotangent, allow_unused=True, materialize_grads=True)
    return [t.detach().double() for t in (out, *grads)]


def check(call, dtype):
    ours, exact = gradients(call, "triton", dtype), gradients(call, "reference", torch.float64)
    if dtype == torch.float32:
        for a, b in zip(ours, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * max(1.0, b.abs().max().item() if b.numel() else 0))
        return
    plain = gradients(call, "chunked", dtype)
    exact = gradients(in_dtype(in_dtype(call, dtype), torch.float64), "reference", torch.float64)
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-3 * c.norm() + 1e-5


CAUSAL = {
    "sliding, tables": (Causal(40, 8, 1), 75, 75, 0, True),
    "sliding, cache": (Causal(33, 4, 2), 50, 70, 45, True),
    "segment kind": (Causal(24, 5, 1, "segment"), 70, 77, 31, True),
    "a text without rows": (Causal(20, 6, 0), 41, 41, 0, True),
    "as many rows as tokens": (Causal(9, 3, 3), 40, 45, 8, False),
    "one query": (Causal(70, 16, 1), 1, 60, 90, True),
}
BIDIRECTIONAL = {
    "a window of 1": (Segments(1), 70, 20),
    "an even window": (Segments(8), 75, 5),
    "an odd window": (Segments(27), 61, 3),
    "a window over all": (Segments(90), 40, 0),
    "rows alone": (Segments(0), 37, 33),
    "a grid": (Tiles(4, 9, 7), 63, 3),
    "a grid, odd window": (Tiles(7, 10, 12), 120, 4),
    "a grid narrower than the window": (Tiles(5, 11, 3), 33, 2),
    "a grid of one column": (Tiles(3, 20, 1), 20, 2),
}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])


@dtypes
@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name, dtype):
    torch.manual_seed(0)
    geometry, queries, keys, start, positions = CAUSAL[name]
    rows, width = geometry.rows_before(start + queries), 24
    given = tables(geometry, rows, width) if positions else None
    check(a_call(geometry, queries, rows, width, keys, start=start, positions=given), dtype)


@dtypes
@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_bidirectional(name, dtype):
    torch.manual_seed(0)
    geometry, tokens, rows = BIDIRECTIONAL[name]
    bias = randn(HEADS, geometry.offsets, geometry.offsets) if isinstance(geometry, Tiles) else None
    check(a_call(geometry, tokens, rows, 16, bias=bias), dtype)


@pytest.mark.parametrize("width", [5, 33, 64, 128])
def test_head_widths(width):
    torch.manual_seed(0)
    check(a_call(Segments(16), 35, 3, width), torch.float32)
    geometry = Causal(16, 4, 1)
    check(a_call(geometry, 35, 8, width, positions=tables(geometry, 8, width)), torch.float32)


@settings(max_examples=10)
@given(call=st.one_of(drawn.texts(), drawn.images(), drawn.sequences()))
def test_any_call(call):
    """What the laws of the operation are tested with: padding of any kind, bounded memory, odd sizes."""
    keywords = call.keywords
    assume(why_not(call.tensors[0].float(), keywords["geometry"], keywords.get("positions") is not None) is None)
    check(call, torch.float32)


@pytest.mark.parametrize("name", ["causal", "sequence", "grid"])
def test_padding(name):
    torch.manual_seed(0)
    geometry, rows = {"causal": (Causal(16, 4, 1), 10), "sequence": (Segments(8), 5), "grid": (Tiles(3, 5, 8), 5)}[name]
    masks = dict(mask=mask(40), mask_global=mask(rows))
    masks["mask"][1] = False  # a sequence that is nothing else
    positions = tables(geometry, rows, 16) if name == "causal" else None
    check(a_call(geometry, 40, rows, 16, positions=positions, **masks), torch.float32)


@pytest.mark.parametrize("name", ["sequence", "rows alone", "grid"])
def test_tiles_of_padding_alone(name):
    """Short texts in a long batch: most tiles have nothing to do, and the padding's own gradients are 0."""
    torch.manual_seed(0)
    geometry, tokens, bias = {
        "sequence": (Segments(8), 300, None),
        "rows alone": (Segments(0), 300, None),
        "grid": (Tiles(4, 20, 15), 300, randn(HEADS, 11, 11)),
    }[name]
    real = torch.arange(tokens) < torch.tensor([[21], [150]])
    call = a_call(geometry, tokens, 5, 16, mask=real, bias=bias)
    call.tensors[0].masked_fill_(~real[:, None, :, None], 40.0)  # scores that no weight could be made of
    check(call, torch.float32)
    out, *grads = gradients(call, "triton", torch.float32)
    for t in (out, *grads[:3]):  # and of queries, keys and values
        assert not t.transpose(1, 2)[~real].any()


@pytest.mark.parametrize("name", ["causal", "sequence"])
def test_dropout_drops_what_it_says_and_backward_agrees(name):
    """Weights are a function of the seed, so the output is linear in the values, and that is its gradient."""
    torch.manual_seed(0)
    geometry, rows = {"causal": (Causal(16, 4, 1), 10), "sequence": (Segments(8), 5)}[name]
    call = in_dtype(a_call(geometry, 40, rows, 16, dropout=0.4), torch.float32)
    values = [call.tensors[2], call.tensors[4]]
    torch.manual_seed(7)
    out = call("triton")
    grads = torch.autograd.grad(out.sum(), values)
    linear = sum((g * t).sum() for g, t in zip(grads, values, strict=True))
    torch.testing.assert_close(linear, out.sum(), rtol=1e-4, atol=1e-4)
    ones = dataclasses.replace(call, tensors=[*call.tensors[:2], torch.ones_like(values[0]), call.tensors[3], None])
    ones.tensors[4] = torch.ones_like(values[1])
    torch.manual_seed(7)
    sums = ones("triton").detach()  # of the weights that are left: 1 on average
    assert abs(sums.mean() - 1) < 0.1 and sums.std() > 0.05
    torch.manual_seed(7)
    assert torch.equal(call("triton"), out)
    torch.manual_seed(8)
    assert not torch.equal(call("triton"), out)


def test_dropout_gradients_of_scores():
    """Against finite differences, with the seed held."""
    torch.manual_seed(0)
    geometry = Causal(8, 4, 1)
    call = in_dtype(a_call(geometry, 20, 5, 16, dropout=0.3, positions=tables(geometry, 5, 16)), torch.float32)
    leaves = call.leaves()

    def value():
        torch.manual_seed(3)
        return (call("triton") ** 2).sum()

    grads = torch.autograd.grad(value(), leaves)
    for t, g in zip(leaves, grads, strict=True):
        direction = torch.randn_like(t)
        with torch.no_grad():
            t.add_(direction, alpha=1e-2)
            above = value()
            t.add_(direction, alpha=-2e-2)
            below = value()
            t.add_(direction, alpha=1e-2)
        torch.testing.assert_close((g * direction).sum(), (above - below) / 2e-2, rtol=0.05, atol=0.05)


def test_any_strides():
    """A slice of a wider tensor, an expanded one, and one that is not dense along the head width."""
    torch.manual_seed(0)
    call = a_call(Segments(8), 35, 3, 16)
    wide = randn(BATCH, 35, 3, HEADS, 16)
    call.tensors[:3] = [wide[:, :, i].transpose(1, 2) for i in range(3)]
    call.tensors[3] = randn(BATCH, HEADS, 16, 3).mT
    call.tensors[4] = randn(1, HEADS, 3, 16).expand(BATCH, -1, -1, -1)
    ours, exact = gradients(call, "triton", torch.float32), gradients(call, "reference", torch.float64)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["causal", "sequence", "grid"])
def test_it_is_a_well_behaved_operator(name):
    """As the compiler sees it: schema, fake tensors, gradients, dynamic shapes."""
    from longshort.ops.triton.causal_op import causal_attention
    from longshort.ops.triton.tiles_op import tiles_attention

    torch.manual_seed(0)
    geometry, rows = {"causal": (Causal(6, 4, 1), 3), "sequence": (Segments(4), 3), "grid": (Tiles(2, 3, 4), 3)}[name]
    call = in_dtype(a_call(geometry, 12, rows, 16), torch.float32)
    if name == "causal":
        given = [t.float().requires_grad_() for t in tables(geometry, rows, 16)]
        args = (*call.tensors, None, None, *given, None, 6, 4, 1, True, 0, 0.25, 0.0)
        torch.library.opcheck(causal_attention.custom, args)
    else:
        height, width = (12, 1) if name == "sequence" else (3, 4)
        bias = torch.randn(call.tensors[0].shape[1], 5, 5, requires_grad=True) if name == "grid" else None
        args = (*call.tensors, None, None, bias, None, geometry.window, height, width, 0.25, 0.0)
        torch.library.opcheck(tiles_attention.custom, args)


LAYERS = {
    "sequence": (LongShortAttention(32, 2, window=8, rank=4, dropout=0.1, impl="triton"), 40, ()),
    "causal": (CausalLongShortAttention(32, 2, window=8, segment=4, rank=1, impl="triton"), 24, ()),
    "grid": (GridLongShortAttention(32, 2, window=4, rank=4, relative_bias=True, impl="triton"), 30, ((5, 6),)),
}
layers = pytest.mark.parametrize("name", LAYERS)


@layers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the compiler imports
def test_layers_compile_into_one_graph(name):
    layer, n, rest = LAYERS[name]
    layer = copy.deepcopy(layer).eval()
    x = torch.randn(1, n, 32, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True if name == "sequence" else None)
    y, expected = output(compiled, x, *rest), output(layer, x, *rest)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
    g = torch.randn(y.shape)
    torch.testing.assert_close(*(torch.autograd.grad(t, x, g)[0] for t in (y, expected)), rtol=0, atol=1e-5)


@layers
def test_layers_with_checkpointing(name):
    layer, n, rest = LAYERS[name]
    x = torch.randn(1, n, 32, requires_grad=True)
    grads = []
    for step in (lambda t: output(layer, t, *rest), lambda t: checkpoint(output, layer, t, *rest, use_reentrant=False)):
        torch.manual_seed(3)
        grads.append(torch.autograd.grad(step(x).sum(), x)[0])
    assert torch.equal(*grads)


def test_the_operation_with_checkpointing():
    """Apart from the layers, which take another way through autograd."""
    call = in_dtype(a_call(Segments(8), 20, 3, 16), torch.float32)
    grads = []
    for step in (lambda: call("triton"), lambda: checkpoint(call, "triton", use_reentrant=False)):
        grads.append(torch.autograd.grad(step().sum(), call.leaves()))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_heads_merge_without_a_copy():
    geometry = Causal(16, 4, 1)
    for call in (a_call(Segments(8), 20, 3, 16), a_call(geometry, 20, 5, 16)):
        assert in_dtype(call, torch.float32)("triton").transpose(1, 2).is_contiguous()


def test_it_is_deterministic():
    torch.manual_seed(0)
    geometry = Causal(16, 4, 1)
    call = a_call(geometry, 50, 12, 16, positions=tables(geometry, 12, 16))
    once, twice = (gradients(call, "triton", torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_what_it_cannot_do_it_says():
    call = in_dtype(a_call(Segments(8), 20, 3, 16), torch.float64)
    with pytest.raises(ValueError, match=r"impl='triton' cannot run here: .*float64"):
        call("triton")
    call = in_dtype(a_call(Segments(8), 20, 3, 144), torch.float32)
    with pytest.raises(ValueError, match="144 features wide"):
        call("triton")
    call = in_dtype(a_call(Segments(8), 20, 3, 16), torch.float32)
    with pytest.raises(ValueError, match="a scale above 0, not -1"):
        in_dtype(call, torch.float32).but(scale=-1.0)("triton")
    geometry = Causal(16, 4, 4)
    call = in_dtype(a_call(geometry, 20, 20, 16, positions=tables(geometry, 20, 16)), torch.float32)
    with pytest.raises(ValueError, match="rank 4 is too high for segment 4"):
        call("triton")
    long_short_attention(*call.tensors, **call.keywords)  # auto finds another
