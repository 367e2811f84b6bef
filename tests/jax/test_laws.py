"""Laws of the operation in JAX: it is PyTorch's, to the last gradient, and what that promises, this does."""

from functools import partial

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

import longshort.jax.ops as ops
from longshort import Causal, Segments, Tiles
from longshort.jax import RelativePositions, dynamic_projection, long_short_attention

both = pytest.mark.parametrize("impl", ["reference", "chunked"])
pytestmark = pytest.mark.usefixtures("float64")


def tables(span, rows):
    shapes = (drawn.HEADS, drawn.WIDTH), (drawn.HEADS, drawn.WIDTH)
    sizes = (drawn.HEADS, span, drawn.WIDTH), (drawn.HEADS, rows, drawn.WIDTH)
    return [drawn.randn(*shape) for shape in (*shapes, *sizes)]


def mask_of(length):
    """The second sequence has holes, and padding at its end."""
    mask = torch.ones(drawn.BATCH, length, dtype=torch.bool)
    mask[1, length // 3 :: 4] = mask[1, length - length // 5 :] = False
    return mask


def cases():
    """A call of each kind that takes a path of its own."""
    torch.manual_seed(0)
    texts = {
        "text": (Causal(8, 4, 2), 75, 75, 0),
        "a block of a text": (Causal(9, 4, 1), 70, 83, 33),
        "a cut memory": (Causal(40, 3, 1), 50, 95, 45),
        "whole segments": (Causal(5, 7, 2, "segment"), 66, 75, 20),
        "a window over all": (Causal(200, 4, 1), 40, 40, 0),
    }
    found = {
        "sequence": drawn.call(Segments(8), 75, 4, mask=mask_of(75)),
        "window 1": drawn.call(Segments(1), 70, 3),
        "rows alone": drawn.call(Segments(0), 70, 3, mask=mask_of(70), mask_global=mask_of(3)),
        "one window": drawn.call(Segments(90), 70, 3),
        "no rows": drawn.call(Segments(6), 70, 0, mask=mask_of(70)),
        "grid": drawn.call(Tiles(4, 11, 13), 143, 3, bias=drawn.randn(drawn.HEADS, 11, 11), mask=mask_of(143)),
        "a line": drawn.call(Tiles(7, 1, 60), 60, 3),
        "a wide window": drawn.call(Tiles(9, 4, 30), 120, 2, mask_global=mask_of(2)),
        "rows of a grid": drawn.call(Tiles(0, 7, 9), 63, 2),
    }
    for name, (geometry, n, keys, start) in texts.items():
        rows = geometry.rows_before(start + n)
        if name == "a cut memory":
            rows -= 5
        positions = None if name == "whole segments" else tables(geometry.span, rows)
        mask = mask_of(keys) if name == "a block of a text" else None
        found[name] = drawn.call(geometry, n, rows, keys, start=start, positions=positions, mask=mask)
    return found


CASES = cases()


def leaves(call):
    """All that can have a gradient, as numpy arrays."""
    positions = call.keywords.get("positions") or ()
    bias = call.keywords.get("bias")
    return [t.detach().numpy() for t in (*call.tensors, *positions, *([] if bias is None else [bias]))]


def rebuilt(call, arrays):
    """The call's arguments in JAX, with other numbers."""
    keywords = dict(call.keywords)
    for name in ("mask", "mask_global"):
        if keywords.get(name) is not None:
            keywords[name] = jnp.asarray(keywords[name].numpy())
    more = arrays[5:]
    if keywords.get("positions"):
        keywords["positions"] = RelativePositions(*more)
    elif keywords.get("bias") is not None:
        (keywords["bias"],) = more
    return arrays[:5], keywords


def run(call, implementation, arrays=None, **changes):
    tensors, keywords = rebuilt(call, leaves(call) if arrays is None else arrays)
    return long_short_attention(*tensors, **{"impl": implementation, **keywords, **changes})


def gradients(call, impl, cotangent):
    """The output and the gradient of every array that has one."""

    @jax.jit
    def both(*arrays):
        out, back = jax.vjp(lambda *given: run(call, impl, list(given)), *arrays)
        return out, back(jnp.asarray(cotangent))

    out, grads = both(*leaves(call))
    return [out, *grads]


def expected(call):
    """By PyTorch's reference, with a cotangent."""
    if call.keywords.get("positions"):
        from longshort import RelativePositions

        call = call.but(positions=RelativePositions(*call.keywords["positions"]))
    given = [t.requires_grad_() for t in call.leaves()]
    out = call("reference")
    torch.manual_seed(1)
    cotangent = torch.randn_like(out)
    grads = torch.autograd.grad(out, given, cotangent, allow_unused=True, materialize_grads=True)
    return [out.detach().numpy(), *(g.numpy() for g in grads)], cotangent.numpy()


def assert_equal(ours, theirs, atol=1e-11):
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=atol)


WAYS = [("reference", name, None) for name in CASES] + [("chunked", name, 1) for name in CASES]
WAYS += [("chunked", name, None) for name in ("sequence", "a block of a text", "grid")]


@pytest.mark.parametrize("impl, name, scores", WAYS)
def test_it_is_the_operation_of_pytorch(impl, name, scores, monkeypatch):
    """Output and every gradient; with one block at a time, and with all at once."""
    if scores is not None:
        monkeypatch.setattr(ops, "SCORES", scores)
    theirs, cotangent = expected(CASES[name])
    assert_equal(gradients(CASES[name], impl, cotangent), theirs)


@settings(max_examples=6, deadline=None)
@given(call=drawn.calls)
def test_any_call(call):
    theirs, cotangent = expected(call)
    assert_equal(gradients(call, "chunked", cotangent), theirs)


@both
@pytest.mark.parametrize("name", ["text", "a block of a text", "whole segments"])
def test_the_future_never_changes_the_past(impl, name):
    call, cut = CASES[name], 37
    geometry, start, n = (call.keywords["geometry"], call.keywords["start"], call.tensors[0].shape[2])
    changed = leaves(call)
    first_row = geometry.rows_before(start + n) - changed[3].shape[2]
    firsts = [cut, *[changed[1].shape[2] - (n - cut)] * 2, *[geometry.rows_before(start + cut) - first_row] * 2]
    for at, first in enumerate(firsts):
        changed[at] = changed[at].copy()
        changed[at][:, :, first:] = 7.0
    compiled = jax.jit(lambda *arrays: run(call, impl, list(arrays)))
    before, after = compiled(*leaves(call)), compiled(*changed)
    np.testing.assert_allclose(after[:, :, :cut], before[:, :, :cut], rtol=0, atol=1e-12)
    assert np.abs(after[:, :, cut:] - before[:, :, cut:]).max() > 0.1


@both
@pytest.mark.parametrize("name", ["sequence", "grid", "rows alone"])
def test_padding_never_changes_real_tokens(impl, name):
    call = CASES[name]
    mask = call.keywords["mask"].numpy()
    changed = leaves(call)
    for at in range(3):
        changed[at] = np.where(mask[:, None, :, None], changed[at], 1e3)
    compiled = jax.jit(lambda *arrays: run(call, impl, list(arrays)))
    before, after = compiled(*leaves(call)), np.asarray(compiled(*changed))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)
    assert (after.swapaxes(1, 2)[~mask] == 0).all()


@both
@pytest.mark.parametrize("name", ["sequence", "grid", "rows alone"])
def test_all_padding_gives_zeros(impl, name):
    call = CASES[name].but(mask=torch.zeros_like(CASES[name].keywords["mask"]), mask_global=None)
    for t in gradients(call, impl, np.ones(call.tensors[0].shape)):
        assert (np.asarray(t) == 0).all()


@both
def test_a_window_over_all_without_rows_is_full_attention(impl):
    for geometry, causal in ((Segments(40), False), (Tiles(9, 6, 6), False), (Causal(40, 1, 0), True)):
        call = drawn.call(geometry, 36, 0)
        full = F.scaled_dot_product_attention(*call.tensors[:3], is_causal=causal)
        ours = jax.jit(partial(long_short_attention, geometry=geometry, impl=impl))(*leaves(call))
        np.testing.assert_allclose(ours, full, rtol=0, atol=1e-12)


@pytest.mark.parametrize("segment", [None, 4, 9])
def test_the_projection_is_that_of_pytorch(segment):
    from longshort import dynamic_projection as pytorch

    torch.manual_seed(0)
    for n in (1, 4, 30):
        logits, k, v = drawn.randn(2, n, 3 * 5), drawn.randn(2, 3, n, 4), drawn.randn(2, 3, n, 4)
        for mask in (None, mask_of(n), torch.zeros(2, n, dtype=torch.bool)):
            theirs = pytorch(logits, k, v, segment=segment, mask=mask)
            given = None if mask is None else jnp.asarray(mask.numpy())
            arrays = [jnp.asarray(t.numpy()) for t in (logits, k, v)]
            assert_equal(dynamic_projection(*arrays, segment=segment, mask=given), theirs, atol=1e-13)


@both
def test_dropout_keeps_the_mean_and_is_drawn_from_the_key(impl):
    call = drawn.call(Segments(8), 64, 4)
    without = run(call, impl)
    drop = jax.jit(lambda key: run(call, impl, dropout=0.3, rng=key))
    mean = jax.lax.map(drop, jax.random.split(jax.random.key(0), 200)).mean(0)
    assert np.abs(mean - without).mean() < 0.04
    one, other = jax.random.split(jax.random.key(1))
    assert (drop(one) == drop(one)).all() and (drop(one) != drop(other)).any()


def test_gradients_with_dropout_match_finite_differences(monkeypatch):
    """One block at a time: the backward pass must find again what each of them dropped."""
    monkeypatch.setattr(ops, "SCORES", 1)
    call = drawn.call(Segments(8), 70, 4)
    arrays, key = leaves(call), jax.random.key(3)
    value = jax.jit(lambda *given: (run(call, "chunked", list(given), dropout=0.4, rng=key) ** 2).sum())
    grads = jax.jit(jax.grad(value, argnums=range(5)))(*arrays)
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(t.shape) for t in arrays]
    up, down = (value(*(t + sign * 1e-6 * d for t, d in zip(arrays, directions, strict=True))) for sign in (1, -1))
    ours = sum((g * d).sum() for g, d in zip(grads, directions, strict=True))
    np.testing.assert_allclose(ours, (up - down) / 2e-6, rtol=1e-6)


def test_memory_is_linear_and_of_a_few_blocks(monkeypatch):
    """What a compiled step needs beside its inputs: 2.7 and 10.1 MiB; with all weights at once it is 25 and 101."""
    monkeypatch.setattr(ops, "SCORES", 1 << 16)
    needed = []
    for n in (1 << 12, 1 << 14):
        shape = jax.ShapeDtypeStruct((1, 2, n, 8), jnp.float32)
        rows = jax.ShapeDtypeStruct((1, 2, 64, 8), jnp.float32)
        total = lambda *t: long_short_attention(*t, geometry=Segments(64)).sum()  # noqa: E731
        compiled = jax.jit(jax.grad(total, argnums=range(5))).lower(shape, shape, shape, rows, rows).compile()
        needed.append(compiled.memory_analysis().temp_size_in_bytes)
    assert needed[1] < 4.5 * needed[0] and needed[1] < 15 << 20


def test_a_scale_of_ones_own():
    call = CASES["sequence"]
    theirs = call("reference", scale=0.1).detach()
    np.testing.assert_allclose(run(call, "chunked", scale=0.1), theirs, rtol=0, atol=1e-12)


def test_blocks_drop_by_themselves():
    """Where all weights are alike and all values 1, the output is the share that was kept."""
    q, v = jnp.zeros((1, 1, 160, 4)), jnp.ones((1, 1, 160, 4))
    none = jnp.zeros((1, 1, 0, 4))
    out = long_short_attention(
        q, q, v, none, none, geometry=Segments(32), dropout=0.5, rng=jax.random.key(0), impl="chunked"
    )
    _, second, third, fourth, _ = jnp.split(out, 5, axis=2)  # which see as many keys
    assert (second != third).any() and (third != fourth).any()


def test_the_projection_sums_in_float32():
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape) for shape in ((1, 2000, 6), (1, 2, 2000, 16), (1, 2, 2000, 16))]
    half = [jnp.asarray(t, jnp.bfloat16) for t in given]
    ours = jax.jit(dynamic_projection)(*half)[0].astype(jnp.float32)
    exact = jax.jit(dynamic_projection)(*(t.astype(jnp.float32) for t in half))[0]
    assert np.linalg.norm(ours - exact) < 0.003 * np.linalg.norm(exact)  # 0.0022; with sums in 16 bits 0.0052


def test_the_softmax_is_in_float32():
    """Scores of 64 + j / 32, which in bfloat16 would be 64 to 66 in steps of 0.5."""
    j = np.arange(64.0)[:, None]
    k = np.full((64, 16), 4.0) + np.pad(j / 32, ((0, 0), (0, 15)))
    given = (np.full((64, 16), 4.0), k, np.repeat(j / 64, 16, axis=1), *np.zeros((2, 0, 16)))
    half = [jnp.asarray(t[None, None], jnp.bfloat16) for t in given]  # exact in 16 bits
    for impl in ("reference", "chunked"):
        attend = jax.jit(partial(long_short_attention, geometry=Segments(64), impl=impl))
        exact = attend(*(t.astype(jnp.float32) for t in half))
        np.testing.assert_allclose(attend(*half).astype(jnp.float32), exact, rtol=0.004)  # rounding alone: 2 ** -8


def test_the_batch_may_be_a_symbol():
    (batch,) = jax.export.symbolic_shape("b")
    q, rows = (jax.ShapeDtypeStruct((batch, 2, n, 8), jnp.float32) for n in (70, 3))
    exported = jax.export.export(jax.jit(partial(long_short_attention, geometry=Segments(8))))(q, q, q, rows, rows)
    given = [
        jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, n, 8)), jnp.float32) for n in (70, 70, 70, 3, 3)
    ]
    expected = long_short_attention(*given, geometry=Segments(8))
    np.testing.assert_allclose(exported.call(*given), expected, atol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(impl="triton"), "impl must be one of auto, reference, chunked, got 'triton'"),
        (dict(dropout=1.0), "dropout must be at least 0 and below 1"),
        (dict(dropout=0.5), "dropout 0.5 needs rng"),
        (dict(mask=np.ones((2, 7), bool)), r"mask must be bool \[2, 75\]"),
        (dict(mask=np.ones((2, 75))), r"mask must be bool \[2, 75\], True on real tokens, got float64"),
        (dict(mask_global=np.ones((2, 3), bool)), r"mask_global must be bool \[2, 4\]"),
        (dict(bias=np.ones((3, 3, 3))), "bias must be"),
        (dict(geometry=Tiles(4, 9, 9)), "there are 75 tokens, but a grid of 9 × 9"),
        (dict(positions=RelativePositions(*[np.ones(1)] * 4)), "relative positions are for the causal form"),
        (dict(start=3), "start and first_row are for the causal form"),
    ],
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(CASES["sequence"], "chunked", **{"mask": None, **changes})


def test_shapes_that_do_not_fit_are_refused():
    q, k, v, k_global, v_global = leaves(CASES["sequence"])
    call = partial(long_short_attention, geometry=Segments(8))
    for arrays, message in {
        "q": ((q[0], k, v, k_global, v_global), "q must be"),
        "k": ((q, k[:, :2], v, k_global, v_global), "k and v must be"),
        "rows": ((q, k, v, k_global[..., :2], v_global), "k_global and v_global must be"),
        "keys": ((q[:, :, 1:], k, v, k_global, v_global), "74 queries but 75 keys"),
    }.values():
        with pytest.raises(ValueError, match=message):
            call(*arrays)
    with pytest.raises(ValueError, match="q must be of a floating type, got int64"):
        call(q.astype(int), k, v, k_global, v_global)
    with pytest.raises(ValueError, match="nothing to attend to"):
        long_short_attention(q, k, v, k_global[:, :, :0], v_global[:, :, :0], geometry=Segments(0))
    for changes, message in {
        "short": (dict(positions=tables(8, 3)), r"positions.rows must be \[3, 36 or more, 4\], got \(3, 3, 4\)"),
        "narrow": (dict(positions=tables(7, 36)), r"positions.local must be \[3, 8 or more, 4\], got \(3, 7, 4\)"),
        "keys": (dict(start=-1), "there are 75 keys, but the text has 74 tokens by the last query"),
    }.values():
        if "positions" in changes:
            changes = dict(positions=RelativePositions(*(t.numpy() for t in changes["positions"])))
        with pytest.raises(ValueError, match=message):
            run(CASES["text"], "chunked", **changes)
    q, k, v, k_global, v_global = leaves(drawn.call(Causal(8, 4, 2), 75, 38))
    with pytest.raises(ValueError, match="there are 38 rows, but 36 are finished by then"):
        long_short_attention(q, k, v, k_global, v_global, geometry=Causal(8, 4, 2))
    with pytest.raises(ValueError, match="logits must be"):
        dynamic_projection(q[:, 0], k, v)
    with pytest.raises(ValueError, match="segment must be at least 1"):
        dynamic_projection(np.ones((2, 75, 3)), k, v, segment=0)
