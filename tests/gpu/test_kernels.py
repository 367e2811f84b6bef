"""On a CUDA machine, at real sizes: `make test-gpu`. Everywhere else these tests are skipped.

The rule: the error against a float32 reference is at most twice that of plain PyTorch in the same dtype.
"""

import pytest
import torch
from layers import output

from longshort import (
    Causal,
    CausalLongShortAttention,
    GridLongShortAttention,
    LongShortAttention,
    RelativePositions,
    Segments,
    Tiles,
    dynamic_projection,
    long_short_attention,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CUDA = torch.device("cuda")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def randn(*shape):
    return torch.randn(*shape, device=CUDA)


def tokens(batch, heads, n, width):
    return randn(batch, n, heads, width).transpose(1, 2)


def case(name):
    """Tensors in float32 and keywords."""
    torch.manual_seed(0)
    if name.startswith("causal"):
        geometry = Causal(512, 16, 1, "segment" if "segment" in name else "sliding")
        start = 1000 if "cache" in name else 0
        n, width = 1500, 64
        keys = n + min(start, geometry.span - 1)
        rows = geometry.rows_before(start + n)
        keywords = dict(geometry=geometry, start=start)
        if "plain" not in name:
            tables = [0.3 * randn(4, width), 0.3 * randn(4, width)]
            tables += [randn(size, 4, width).transpose(0, 1) for size in (geometry.span, rows)]
            keywords["positions"] = RelativePositions(*tables)
        return [tokens(2, 4, size, width) for size in (n, keys, keys, rows, rows)], keywords
    if name.startswith("grid"):
        geometry = Tiles(7 if "odd" in name else 8, 61, 50)
        n, width, rows = 61 * 50, 32, 8
        keywords = dict(geometry=geometry, bias=randn(3, geometry.offsets, geometry.offsets))
        return [tokens(2, 3, size, width) for size in (n, n, n, rows, rows)], keywords
    window, rows, width = {"sequence": (64, 64, 64), "narrow": (8, 32, 32), "rows": (1, 254, 32)}[name]
    n = 3001
    mask = torch.ones(2, n, dtype=torch.bool, device=CUDA)
    mask[1, 2000:] = False
    return [tokens(2, 4, size, width) for size in (n, n, n, rows, rows)], dict(geometry=Segments(window), mask=mask)


CASES = [
    "causal",
    "causal, cache",
    "causal, segment",
    "causal, plain",
    "grid",
    "grid, odd",
    "sequence",
    "narrow",
    "rows",
]


def gradients(name, impl, dtype, exact=None):
    """Output and gradients, from the same numbers, rounded to `dtype` first."""
    tensors, keywords = case(name)
    tables = [*(keywords.get("positions") or ()), keywords.get("bias")]
    leaves = [t.to(dtype).to(exact or dtype).requires_grad_() for t in (*tensors, *tables) if t is not None]
    tensors, tables = leaves[:5], leaves[5:]
    if "positions" in keywords:
        keywords["positions"] = RelativePositions(*tables)
    if "bias" in keywords:
        (keywords["bias"],) = tables
    out = long_short_attention(*tensors, impl=impl, **keywords)
    torch.manual_seed(1)
    cotangent = randn(*out.shape).to(dtype).to(out.dtype)
    return [t.detach().float() for t in (out, *torch.autograd.grad(out, leaves, cotangent))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_error_is_at_most_twice_that_of_plain_pytorch(name, dtype):
    ours, plain = gradients(name, "triton", dtype), gradients(name, "chunked", dtype)
    exact = gradients(name, "reference", dtype, torch.float64 if dtype == torch.float32 else torch.float32)
    for i, (a, b, c) in enumerate(zip(ours, plain, exact, strict=True)):
        assert a.isfinite().all()
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-6 * c.norm(), i


@pytest.mark.parametrize("segment", [None, 16])
@pytest.mark.parametrize("rank", [1, 32, 254])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_projection(segment, rank, dtype):
    torch.manual_seed(0)
    logits, k, v = randn(2, 3001, 4 * rank), tokens(2, 4, 3001, 64), tokens(2, 4, 3001, 64)

    def run(impl, dtype):
        leaves = [t.to(rounded).to(dtype).requires_grad_() for t in (logits, k, v)]
        rows = dynamic_projection(*leaves, segment=segment, impl=impl)
        torch.manual_seed(1)
        cotangents = [randn(*r.shape).to(rounded).to(dtype) for r in rows]
        return [t.detach().double() for t in (*rows, *torch.autograd.grad(rows, leaves, cotangents))]

    rounded = dtype
    ours, plain, exact = run("triton", dtype), run("reference", dtype), run("reference", torch.float64)
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert (a - c).norm() <= 2 * (b - c).norm() + 2e-6 * c.norm()


@pytest.mark.parametrize("name", CASES)
def test_it_is_deterministic(name):
    once, twice = (gradients(name, "triton", torch.bfloat16) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_output_is_written(name):
    """torch.empty comes filled with NaN in all tests (conftest.py); nothing of it is left."""
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.are_deterministic_algorithms_enabled()
    assert all(t.isfinite().all() for t in gradients(name, "triton", torch.float16))


LAYERS = {
    "sequence": (lambda: LongShortAttention(64, 2, window=8, rank=32, dropout=0.1), (2, 300, 64), ()),
    "causal": (lambda: CausalLongShortAttention(64, 2, window=32, segment=16, rank=1), (2, 300, 64), ()),
    "grid": (
        lambda: GridLongShortAttention(64, 2, window=7, rank=8, relative_bias=True),
        (2, 18 * 20, 64),
        ((18, 20),),
    ),
}
layers = pytest.mark.parametrize("name", LAYERS)


@layers
def test_a_layer_is_what_it_is_on_the_cpu(name):
    make, shape, rest = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make().eval(), torch.randn(shape)
    expected = output(layer, x, *rest)
    torch.testing.assert_close(output(layer.to(CUDA), x.to(CUDA), *rest).cpu(), expected, rtol=0, atol=2e-5)


@layers
def test_autocast(name):
    """Keys stay in the dtype of the queries; gradients come in that of the weights."""
    make, shape, rest = LAYERS[name]
    layer, x = make().to(CUDA), randn(*shape)
    with torch.autocast("cuda", torch.bfloat16):
        y = output(layer, x, *rest)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())


@layers
@pytest.mark.filterwarnings("ignore")  # the compiler gives advice, such as to allow tf32
def test_compiled_without_graph_breaks(name):
    make, shape, rest = LAYERS[name]
    torch.manual_seed(0)
    layer = make().to(CUDA).eval()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True if name == "sequence" else None)
    for n in (shape[1], shape[1] + 64) if name == "sequence" else (shape[1],):
        x = randn(shape[0], n, shape[2]).requires_grad_()
        y, expected = output(compiled, x, *rest), output(layer, x, *rest)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)
        g = torch.randn_like(y)
        ours, theirs = (torch.autograd.grad(t, x, g)[0] for t in (y, expected))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


@layers
@pytest.mark.filterwarnings("ignore")  # the compiler uses what PyTorch deprecates
def test_compiled_layers_take_the_kernels(name):
    make, shape, rest = LAYERS[name]
    compiled = torch.compile(make().to(CUDA), fullgraph=True)
    output(compiled, randn(*shape), *rest)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        output(compiled, randn(*shape), *rest)
    wanted = "longshort::causal" if name == "causal" else "longshort::tiles"
    assert wanted in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("name", ["sequence", "causal"])  # an image smaller than a window has kernels of its own
def test_a_new_length_compiles_nothing(name):
    from longshort.ops.triton import causal, tiles

    make, _, rest = LAYERS[name]
    layer = make().to(CUDA)
    kernels = [causal.forward, causal.backward_queries, causal.backward_keys, tiles.forward, tiles.backward_keys]

    def count():
        return sum(len(cache[0]) for k in kernels for cache in k.function.device_caches.values())

    output(layer, randn(2, 320, 64), *rest).sum().backward()
    before = count()
    for n in (336, 640, 1008, 2048):
        output(layer, randn(2, n, 64), *rest).sum().backward()
    assert count() == before


@layers
@pytest.mark.filterwarnings("ignore")  # gradients are made on the stream of the warm-up
def test_cuda_graph(name):
    make, shape, rest = LAYERS[name]
    layer = make().to(CUDA).eval()
    x = randn(*shape).requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            output(layer, x, *rest).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = output(layer, x, *rest)
        (grad,) = torch.autograd.grad(y.sum(), x)
    with torch.no_grad():
        x.copy_(randn(*shape))
    graph.replay()
    expected = output(layer, x, *rest)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), x)[0], rtol=0, atol=1e-4)


@layers
def test_checkpointing(name):
    make, shape, rest = LAYERS[name]
    layer, x = make().to(CUDA), randn(*shape).requires_grad_()
    grads = []
    for checkpoint in (False, True):
        torch.manual_seed(3)
        if checkpoint:
            y = torch.utils.checkpoint.checkpoint(lambda t: output(layer, t, *rest), x, use_reentrant=False)
        else:
            y = output(layer, x, *rest)
        grads.append(torch.autograd.grad(y.sum(), x)[0])
    torch.testing.assert_close(*grads, rtol=0, atol=1e-6)


def test_offsets_beyond_32_bits():
    """A batch whose tokens number more than 2³¹."""
    heads, width, n = 2, 64, 1 << 17
    batch = (1 << 31) // (heads * width * n) + 1
    q = torch.randn(batch, n, heads, width, device=CUDA, dtype=torch.bfloat16).transpose(1, 2)
    rows = torch.randn(batch, 4, heads, width, device=CUDA, dtype=torch.bfloat16).transpose(1, 2)
    out = long_short_attention(q, q, q, rows, rows, geometry=Segments(8), impl="triton")
    last = long_short_attention(*(t[-1:] for t in (q, q, q, rows, rows)), geometry=Segments(8), impl="triton")
    assert torch.equal(out[-1:], last)
