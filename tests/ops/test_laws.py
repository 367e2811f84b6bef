"""Laws of the operation, for both implementations and all geometries, over odd sizes, windows, ranks and masks."""

import importlib
from contextlib import contextmanager

import drawn
import pytest
import torch
import torch.nn.functional as F
from drawn import Call
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longshort import Causal, RelativePositions, Segments, Tiles, dynamic_projection, long_short_attention
from longshort.ops.blocks import make_plan

IMPLEMENTATIONS = ["reference", "chunked"]
both = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
chunked = importlib.import_module("longshort.ops.chunked")


def gradients(call, impl):
    """The output and the gradient of every tensor that has one."""
    leaves = call.leaves()
    out = call(impl)
    torch.manual_seed(1)
    grads = torch.autograd.grad(out, leaves, torch.randn_like(out), allow_unused=True, materialize_grads=True)
    return [out.detach(), *grads]


@settings(max_examples=150)
@given(drawn.calls, st.sampled_from([1 << 6, 1 << 21]))
def test_chunked_is_the_reference(call, budget):
    """Output and every gradient, whether a chunk holds one block or all."""
    with chunks_of(budget):
        ours = gradients(call, "chunked")
    for ours_, reference in zip(ours, gradients(call, "reference"), strict=True):
        torch.testing.assert_close(ours_, reference, rtol=0, atol=1e-11)


@settings(max_examples=60)
@given(drawn.calls)
def test_all_at_once_is_the_reference(call):
    """The form that the compiler and the exporter see."""
    real, torch.compiler.is_compiling = torch.compiler.is_compiling, lambda: True
    try:
        ours = gradients(call, "chunked")
    finally:
        torch.compiler.is_compiling = real
    for ours_, reference in zip(ours, gradients(call, "reference"), strict=True):
        torch.testing.assert_close(ours_, reference, rtol=0, atol=1e-11)


@both
@settings(max_examples=12)
@given(call=drawn.calls)
def test_gradients_are_those_of_finite_differences(impl, call):
    """Along a random direction, which any wrong entry of any gradient would show in."""
    out, *grads = gradients(call, impl)
    torch.manual_seed(1)
    cotangent = torch.randn_like(out)
    leaves = call.leaves()
    directions = [torch.randn_like(t) for t in leaves]
    values, step = [], 1e-6
    for sign in (1, -1):
        with torch.no_grad():
            for t, d in zip(leaves, directions, strict=True):
                t.add_(d, alpha=sign * step)
            values.append((call(impl) * cotangent).sum())
            for t, d in zip(leaves, directions, strict=True):
                t.add_(d, alpha=-sign * step)
    expected = (values[0] - values[1]) / (2 * step)
    ours = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@both
@pytest.mark.parametrize("name", ["sequence", "text", "image"])
def test_gradcheck(impl, name):
    """Entry by entry, where there are few."""
    torch.manual_seed(0)
    geometry = {"sequence": Segments(2), "text": Causal(3, 2, 1), "image": Tiles(2, 2, 3)}[name]
    call = drawn.call(geometry, 6, geometry.rows_before(6) if name == "text" else 2)
    tensors = [t[:1, :1, :, :2].clone().requires_grad_() for t in call.tensors]
    assert torch.autograd.gradcheck(lambda *t: long_short_attention(*t, geometry=geometry, impl=impl), tensors)


@both
@given(call=drawn.texts(), cut=st.integers(0, 89))
def test_the_future_never_changes_the_past(impl, call, cut):
    """Neither later tokens, nor rows of segments that were not finished."""
    geometry, start, n = call.keywords["geometry"], call.keywords["start"], call.tensors[0].shape[2]
    cut = cut % n
    before = call(impl)
    future_keys = call.tensors[1].shape[2] - (n - cut)
    first_row = geometry.rows_before(start + n) - call.tensors[3].shape[2]
    future_rows = max(0, geometry.rows_before(start + cut) - first_row)
    for t, first in zip(call.tensors, (cut, future_keys, future_keys, future_rows, future_rows), strict=True):
        t[:, :, first:] = torch.randn_like(t[:, :, first:])
    torch.testing.assert_close(call(impl)[:, :, :cut], before[:, :, :cut], rtol=0, atol=1e-12)


@both
@given(call=st.one_of(drawn.sequences(), drawn.images()), data=st.data())
def test_padding_never_changes_real_tokens(impl, call, data):
    mask = data.draw(drawn.masks(call.tensors[1].shape[2]))
    call = call.but(mask=mask)
    before = call(impl)
    for t in call.tensors[:3]:
        t[~mask[:, None].expand(-1, drawn.HEADS, -1)] = 1e3
    after = call(impl)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
    assert (after.transpose(1, 2)[~mask] == 0).all()


@both
@given(call=st.one_of(drawn.sequences(), drawn.images()))
def test_all_padding_gives_zeros(impl, call):
    call = call.but(mask=torch.zeros(drawn.BATCH, call.tensors[1].shape[2], dtype=torch.bool))
    for t in gradients(call, impl):
        assert (t == 0).all()


@both
def test_a_query_that_sees_nothing_gets_zeros(impl):
    call = drawn.call(Segments(0), 20, 3, mask_global=torch.tensor([[True, False, True], [False] * 3]))
    out, *grads = gradients(call, impl)
    assert (out[1] == 0).all() and (out[0] != 0).any()
    for g in grads:
        assert (g[1] == 0).all() and g.isfinite().all()


@both
@given(n=st.integers(1, 70), more=st.sampled_from([0, 1, 9, 3000]), seed=st.integers(0, 99))
def test_a_window_over_all_without_rows_is_full_attention(impl, n, more, seed):
    torch.manual_seed(seed)
    height, width = next((d, n // d) for d in range(int(n**0.5), 0, -1) if n % d == 0)
    for geometry in (Segments(n + more), Tiles(max(height, width) + more, height, width)):
        call = drawn.call(geometry, n, 0)
        expected = F.scaled_dot_product_attention(*call.tensors[:3])
        torch.testing.assert_close(call(impl), expected, rtol=0, atol=1e-12)
    for kind in ("sliding", "segment"):
        call = drawn.call(Causal(n + more, 1, 0, kind), n, 0)
        expected = F.scaled_dot_product_attention(*call.tensors[:3], is_causal=True)
        torch.testing.assert_close(call(impl), expected, rtol=0, atol=1e-12)


@both
@given(window=st.integers(1, 20), n=st.integers(1, 70), rows=st.integers(0, 3), upright=st.booleans())
def test_a_grid_of_one_line_is_a_sequence(impl, window, n, rows, upright):
    torch.manual_seed(n)
    call = drawn.call(Segments(window), n, rows)
    grid = call.but(geometry=Tiles(window, n, 1) if upright else Tiles(window, 1, n))
    torch.testing.assert_close(grid(impl), call(impl), rtol=0, atol=1e-12)


@both
@given(call=st.one_of(drawn.sequences(), drawn.images()))
def test_the_order_of_rows_does_not_matter(impl, call):
    assume(call.keywords.get("mask_global") is None)
    before = call(impl)
    order = torch.randperm(call.tensors[3].shape[2])
    call.tensors[3:] = [t[:, :, order] for t in call.tensors[3:]]
    torch.testing.assert_close(call(impl), before, rtol=0, atol=1e-12)


@given(segment=st.one_of(st.none(), st.integers(1, 9)), n=st.integers(1, 30), rank=st.integers(0, 5))
def test_the_order_of_tokens_in_a_projection_does_not_matter(segment, n, rank):
    torch.manual_seed(n)
    logits = drawn.randn(2, n, 3 * rank)
    k, v = drawn.randn(2, 3, n, 4), drawn.randn(2, 3, n, 4)
    length = n if segment is None else segment
    order = torch.cat([a + torch.randperm(min(length, n - a)) for a in range(0, n // length * length, length)] or [[]])
    order = torch.cat([order, torch.arange(len(order), n)]).long()
    rows = dynamic_projection(logits, k, v, segment=segment)
    permuted = dynamic_projection(logits[:, order], k[:, :, order], v[:, :, order], segment=segment)
    for a, b in zip(rows, permuted, strict=True):
        assert a.shape == (2, 3, n // length * rank, 4)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@given(n=st.integers(1, 30), rank=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_projection_is_an_average_of_the_real_tokens(n, rank, seed):
    torch.manual_seed(seed)
    mask = torch.rand(2, n) > 0.4
    mask[1] = False
    logits, k = drawn.randn(2, n, 3 * rank), drawn.randn(2, 3, n, 4)
    k_rows, ones = dynamic_projection(logits, k, torch.ones_like(k), mask=mask)
    torch.testing.assert_close(ones[0], torch.full_like(ones[0], float(mask[0].any())))
    assert (k_rows[1] == 0).all() and (ones[1] == 0).all()
    alone, _ = (
        dynamic_projection(logits[:1, mask[0]], k[:1, :, mask[0]], k[:1, :, mask[0]])
        if mask[0].any()
        else (k_rows[:1], None)
    )
    torch.testing.assert_close(k_rows[:1], alone)


@both
def test_dropout_keeps_the_mean_and_its_gradient_knows_the_mask(impl):
    """Weights are dropped and scaled: linear in v, so that moving v by d moves the output by what the gradient says."""
    torch.manual_seed(0)
    call = drawn.call(Segments(8), 64, 4)
    without = call(impl)
    torch.manual_seed(1)
    mean = torch.stack([call(impl, dropout=0.3) for _ in range(400)]).mean(0)
    assert (mean - without).abs().max() < 0.25 and (mean - without).abs().mean() < 0.03

    q, k, v, *rest = (t.clone().requires_grad_() for t in call.tensors)
    direction = torch.randn_like(v)
    values = []
    for step in (0.0, 1.0):
        torch.manual_seed(2)
        out = long_short_attention(q, k, v + step * direction, *rest, geometry=Segments(8), dropout=0.3, impl=impl)
        values.append(out.sum())
    (d_v,) = torch.autograd.grad(values[0], v)
    torch.testing.assert_close((d_v * direction).sum(), values[1] - values[0])
    assert not torch.equal(call(impl, dropout=0.3), call(impl, dropout=0.3))


@contextmanager
def chunks_of(scores):
    """A few scores at a time, so that small inputs have many chunks."""
    before, chunked.CHUNK = chunked.CHUNK, {"cpu": scores}
    try:
        yield
    finally:
        chunked.CHUNK = before


def with_tables(name):
    """A call with all that has a gradient."""
    torch.manual_seed(0)
    if name == "text":
        geometry = Causal(8, 4, 1)
        biases, tables = [drawn.randn(3, 4) for _ in range(2)], [drawn.randn(3, 10, 4) for _ in range(2)]
        return drawn.call(geometry, 100, 10, 100, start=0, positions=RelativePositions(*biases, *tables))
    return drawn.call(Tiles(2, 10, 11), 110, 3, bias=drawn.randn(3, 5, 5))


@pytest.mark.parametrize("name", ["text", "image"])
def test_gradients_with_dropout_match_finite_differences(name):
    """Over many chunks: the backward pass must find again what each of them dropped."""
    call = with_tables(name)
    leaves = call.leaves()

    def value():
        torch.manual_seed(3)
        return call("chunked", dropout=0.4).pow(2).sum()

    with chunks_of(1 << 6):
        grads = torch.autograd.grad(value(), leaves)
        for t, g in zip(leaves, grads, strict=True):
            direction = torch.randn_like(t)
            with torch.no_grad():
                t.add_(direction, alpha=1e-6)
                up = value()
                t.add_(direction, alpha=-2e-6)
                down = value()
                t.add_(direction, alpha=1e-6)
            torch.testing.assert_close((g * direction).sum(), (up - down) / 2e-6, rtol=1e-6, atol=1e-6)


def test_chunks_drop_different_weights():
    call = drawn.call(Segments(32), 64, 0)
    call.tensors = [t[:, :, :1].expand(-1, -1, t.shape[2], -1) for t in call.tensors[:3]] + call.tensors[3:]
    with chunks_of(1):
        out = call("chunked", dropout=0.5)
    assert not torch.equal(out[:, :, :32], out[:, :, 32:].flip(2)) and not torch.equal(out[:, :, :16], out[:, :, 48:])


@pytest.mark.parametrize("name", ["text", "image"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_half_precision(name, dtype):
    """Over many chunks: at most twice the error of plain PyTorch, the dense form, in the same precision."""
    call = with_tables(name)
    exact = gradients(call, "reference")
    half = Call([t.detach().to(dtype) for t in call.tensors], dict(call.keywords))
    for key, table in call.keywords.items():
        if isinstance(table, RelativePositions):
            half.keywords[key] = RelativePositions(*(t.detach().to(dtype) for t in table))
        elif isinstance(table, torch.Tensor):
            half.keywords[key] = table.detach().to(dtype)
    with chunks_of(1 << 6):
        ours = gradients(half, "chunked")
    plain = gradients(half, "reference")
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert a.dtype == dtype
        rounding = torch.finfo(dtype).eps * c.abs().max()
        assert (a.double() - c).abs().max() <= 2 * (b.double() - c).abs().max() + 2 * rounding


def test_float16_hides_the_future_whatever_the_scores():
    q = torch.full((1, 1, 40, 4), 68.0, dtype=torch.float16)
    k = -q.clone()
    k[:, :, 20:] = 68.0
    v = torch.zeros_like(q)
    v[:, :, 20:] = 1.0
    rows = torch.zeros(1, 1, 0, 4, dtype=torch.float16)
    out = long_short_attention(q, k, v, rows, rows, geometry=Causal(32, 1, 0), impl="chunked")
    assert (out[:, :, :20] == 0).all() and (out[:, :, 20:] > 0.99).all()


def test_backward_inside_autocast():
    call = with_tables("text")
    call.tensors = [t.float() for t in call.tensors]
    call.keywords["positions"] = RelativePositions(*(t.float() for t in call.keywords["positions"]))
    leaves = call.leaves()
    out = call("chunked")
    expected = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = torch.autograd.grad(out.sum(), leaves)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a, b)


def test_float64_stays_float64_under_autocast():
    call = drawn.call(Segments(4), 40, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(call("chunked"), call("chunked")) and call("chunked").dtype == torch.float64


def test_meta_tensors_have_a_shape():
    call = drawn.call(Segments(4), 40, 2)
    call.tensors = [t.to("meta") for t in call.tensors]
    assert call("chunked").shape == (2, 3, 40, 4)


@pytest.mark.parametrize(
    "geometry, n", [(Causal(509, 127, 1, "segment"), 300), (Tiles(56, 7, 9), 63), (Segments(100_000), 50)], ids=str
)
def test_blocks_are_no_larger_than_the_input(geometry, n):
    plan = make_plan(geometry, n, n, 0, 0, None, None, torch.device("cpu"))
    assert plan.keys.numel() <= 8 * n + 2 * 1018 and plan.block <= n + 127


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_float32(impl, dtype):
    torch.manual_seed(0)
    call = drawn.call(Segments(8), 100, 4)
    exact = call("reference")
    call.tensors = [t.to(dtype) for t in call.tensors]
    out = call(impl)
    assert out.dtype == dtype
    tolerance = 3e-2 if dtype == torch.bfloat16 else 4e-3
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=tolerance)


def test_scale():
    call = drawn.call(Segments(4), 20, 2)
    torch.testing.assert_close(call("chunked", scale=0.3), call("reference", scale=0.3))
    torch.testing.assert_close(call("chunked", scale=drawn.WIDTH**-0.5), call("chunked"))
    assert not torch.allclose(call("chunked", scale=0.3), call("chunked"))
