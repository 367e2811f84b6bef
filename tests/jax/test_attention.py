"""Modules of Flax: cached steps are the whole pass, and every transformation of JAX leaves the numbers alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from longshort.jax import CausalLongShortAttention, GridLongShortAttention, LongShortAttention

WIDTH = 24


def layer_of(name, **changes):
    common = dict(width=WIDTH, heads=3, window=8, rank=2, rngs=nnx.Rngs(0))
    if name == "sequence":
        return LongShortAttention(**common, global_tokens=1, **changes)
    if name == "grid":
        return GridLongShortAttention(**{**common, "window": 3}, relative_bias=True, **changes)
    return CausalLongShortAttention(**common, segment=4, **changes)


def run(name, layer, x):
    if name == "sequence":
        return layer(x, jnp.arange(x.shape[1]) < jnp.array([x.shape[1], 30, 3, 0])[: len(x), None])
    if name == "grid":
        return layer(x, size=(5, 14))
    return layer(x)[0]


compiled = nnx.jit(run, static_argnums=0)


def tokens(batch=2, n=70, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).standard_normal((batch, n, WIDTH)), dtype)


every = pytest.mark.parametrize("name", ["sequence", "grid", "text"])
TEXTS = {
    "sliding": dict(window=8, segment=4, rank=2),
    "an odd segment": dict(window=9, segment=5, rank=1),
    "no positions": dict(window=8, segment=4, rank=1, positions=False),
    "whole segments": dict(window=3, segment=7, rank=2, kind="segment"),
    "a segment of one": dict(window=4, segment=1, rank=1),
    "no rows": dict(window=6, segment=3, rank=0),
}
texts = pytest.mark.parametrize("settings", TEXTS.values(), ids=TEXTS)


@texts
@pytest.mark.usefixtures("float64")
def test_blocks_of_any_size_are_the_whole_pass(settings):
    layer = CausalLongShortAttention(WIDTH, 3, **settings, dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = tokens(dtype=jnp.float64)
    whole = compiled("text", layer, x)
    read = nnx.jit(lambda layer, x, cache: layer(x, cache))
    cache, parts, shapes = layer.empty_cache(2, memory=72), [], set()
    for a, b in ((0, 13), (13, 14), (14, 15), (15, 45), (45, 70)):
        y, cache = read(layer, x[:, a:b], cache)
        parts.append(y)
        shapes.add(str(jax.tree.map(lambda t: (t.shape, t.dtype), cache)))
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, rtol=0, atol=1e-12)
    assert len(shapes) == 1 and cache.length == 70


@texts
@pytest.mark.usefixtures("float64")
def test_token_by_token_in_a_scan(settings):
    layer = CausalLongShortAttention(WIDTH, 3, **settings, dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = tokens(dtype=jnp.float64)

    @jax.jit
    def read(x):
        def step(cache, token):
            y, cache = layer(token[:, None], cache)
            return cache, y[:, 0]

        _, y = jax.lax.scan(step, layer.empty_cache(2, memory=72), x.swapaxes(0, 1))
        return y.swapaxes(0, 1)

    np.testing.assert_allclose(read(x), compiled("text", layer, x), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_a_bounded_memory_forgets_whole_segments():
    """What is older than its rows can be exchanged; a younger token cannot."""
    layer = CausalLongShortAttention(WIDTH, 3, window=8, segment=4, rank=2, dtype=jnp.float64, rngs=nnx.Rngs(0))
    x = tokens(n=70, dtype=jnp.float64)

    def last(x):
        cache = layer.empty_cache(2, memory=20)
        for a in range(0, 68, 4):
            _, cache = layer(x[:, a : a + 4], cache)
        return layer(x[:, 68:], cache)[0]

    last = jax.jit(last)
    kept = 68 - 20  # rows of the five segments before the last block
    np.testing.assert_array_equal(last(x.at[:, :kept].add(1.0)), last(x))
    assert np.abs(last(x.at[:, kept].add(1.0)) - last(x)).max() > 1e-4


def test_no_gradient_goes_into_the_cache():
    layer, x = layer_of("text"), tokens(n=8)

    def later(x):
        _, cache = layer(x, layer.empty_cache(2, memory=16))
        return layer(x[:, :3] * 0 + 1, cache)[0].sum()

    assert (jax.jit(jax.grad(later))(x) == 0).all()


@every
def test_vmap_and_remat_leave_the_numbers_alone(name):
    layer, x = layer_of(name), tokens(batch=2)
    expected = compiled(name, layer, x)
    many = jax.jit(jax.vmap(lambda each: run(name, layer, each)))(jnp.stack([x, x[::-1], x * 2]))
    np.testing.assert_allclose(many[0], expected, atol=1e-5)

    def total(layer, x):
        return (run(name, layer, x) ** 2).sum()

    plain = nnx.jit(nnx.grad(total, argnums=(0, 1)))(layer, x)
    again = nnx.jit(nnx.grad(nnx.remat(total), argnums=(0, 1)))(layer, x)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@every
def test_bfloat16(name):
    """As far from float32 as its 8 bits say, in the output and the gradient; weights stay in float32."""
    exact, half = layer_of(name), layer_of(name, dtype=jnp.bfloat16)

    def both(layer, x):
        out, back = jax.vjp(lambda x: run(name, layer, x), x)
        return out, back(jnp.ones_like(out))[0]

    out, grad = nnx.jit(both)(half, tokens(dtype=jnp.bfloat16))
    assert out.dtype == grad.dtype == jnp.bfloat16 and half.query.kernel.dtype == jnp.float32
    for ours, theirs in zip((out, grad), nnx.jit(both)(exact, tokens()), strict=True):
        assert np.linalg.norm(ours.astype(jnp.float32) - theirs) < 0.02 * np.linalg.norm(theirs)


@every
def test_sharded_over_the_batch_nothing_is_gathered(name):
    """Four devices have a sequence each: the same numbers and gradients, and only gradients of weights travel."""
    layer, x = layer_of(name), tokens(batch=4)
    graph, weights = nnx.split(layer)

    def step(weights, x):
        return jax.value_and_grad(lambda weights, x: (run(name, nnx.merge(graph, weights), x) ** 2).mean())(weights, x)

    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))  # as it is by default in newer ones
    spread, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    sharded = jax.jit(step, in_shardings=(everywhere, spread), out_shardings=everywhere)
    given = jax.device_put(weights, everywhere), jax.device_put(x, spread)
    loss, grads = sharded(*given)
    expected, theirs = jax.jit(step)(weights, x)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    text = sharded.lower(*given).compile().as_text()
    assert "all-reduce" in text and "all-gather" not in text and "all-to-all" not in text


def test_dropout_is_for_training():
    layer, x = layer_of("sequence", dropout=0.5), tokens()
    first, second = (compiled("sequence", layer, x) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    layer.eval()
    expected = compiled("sequence", layer_of("sequence"), x)
    np.testing.assert_allclose(compiled("sequence", layer, x), expected, atol=1e-6)


def test_layers_share_no_stream_of_random_numbers():
    rngs = nnx.Rngs(0)
    layers = nnx.List([LongShortAttention(24, 3, window=8, rank=2, dropout=0.5, rngs=rngs) for _ in range(2)])
    before = rngs.dropout.count[...].item()
    layers[0](tokens(n=9))
    assert rngs.dropout.count[...] == before
    nnx.split(layers, graph=False)  # which refuses what is shared


def test_a_cache_keeps_its_types():
    layer = layer_of("text")
    cache = layer.empty_cache(2, memory=8, dtype=jnp.bfloat16)
    _, made = nnx.jit(lambda layer, x, cache: layer(x, cache))(layer, tokens(n=5), cache)
    assert jax.tree.map(lambda t: t.dtype, made) == jax.tree.map(lambda t: t.dtype, cache)


def test_what_stands_in_the_padding_reaches_no_one():
    layer, x = layer_of("sequence"), tokens()
    for poison in (1e6, np.nan, np.inf):
        poisoned = x.at[1, 30:].set(poison)
        np.testing.assert_array_equal(compiled("sequence", layer, poisoned), compiled("sequence", layer, x))


def test_padding_to_a_common_length_changes_nothing():
    """How one compiled function serves texts of many lengths."""
    layer = LongShortAttention(WIDTH, 3, window=8, rank=2, rngs=nnx.Rngs(0))
    masked, plain = nnx.jit(lambda layer, x, mask: layer(x, mask)), nnx.jit(lambda layer, x: layer(x))
    for n in (1, 9, 63, 64):
        x = tokens(n=n)
        padded, mask = jnp.pad(x, ((0, 0), (0, 64 - n), (0, 0))), jnp.broadcast_to(jnp.arange(64) < n, (2, 64))
        np.testing.assert_allclose(masked(layer, padded, mask)[:, :n], plain(layer, x), atol=2e-6)


def test_bad_settings_and_input_are_refused():
    rngs = nnx.Rngs(0)
    other = CausalLongShortAttention(24, 3, window=8, segment=2, rank=2, rngs=rngs)
    for make, message in {
        lambda: LongShortAttention(24, 5, window=8, rank=2, rngs=rngs): "width 24 is not divisible by heads 5",
        lambda: LongShortAttention(24, 3, window=0, rank=0, rngs=rngs): "both 0",
        lambda: LongShortAttention(24, 3, window=8, rank=-1, rngs=rngs): "rank must not be negative",
        lambda: LongShortAttention(24, 3, window=8, rank=2, global_tokens=-1, rngs=rngs): "global_tokens must not",
        lambda: LongShortAttention(24, 3, window=8, rank=2, dropout=1.0, rngs=rngs): "dropout must be",
        lambda: GridLongShortAttention(24, 3, window=0, rank=2, relative_bias=True, rngs=rngs): "window is 0",
        lambda: CausalLongShortAttention(24, 3, window=2, segment=4, rank=1, rngs=rngs): "shorter than segment",
        lambda: layer_of("text").empty_cache(0, memory=4): "batch must be at least 1",
        lambda: layer_of("sequence")(tokens(n=1)): "none is left",
        lambda: layer_of("sequence")(tokens()[..., :5]): r"width 24\], got \(2, 70, 5\)",
        lambda: layer_of("sequence")(tokens().astype(int)): "floating type",
        lambda: layer_of("sequence")(tokens(), jnp.ones((2, 3), bool)): r"mask must be bool \[2, 70\]",
        lambda: layer_of("grid")(tokens(), size=(70,)): r"size must be \(height, width\), got \(70,\)",
        lambda: layer_of("text")(tokens(), "poem"): "cache must be a CausalCache, .* got str",
        lambda: layer_of("grid")(tokens(), size=(5, 13)): r"a grid of \(5, 13\)",
        lambda: layer_of("sequence")(tokens(), count=71): "count must be from 1 to the 70 tokens of x, got 71",
        lambda: layer_of("text")(tokens(), layer_of("text").empty_cache(1, memory=4)): "another batch or layer",
        lambda: layer_of("text")(tokens(), other.empty_cache(2, memory=4)): r"its logits is \(2, 1, 6\)",
        lambda: CausalLongShortAttention(
            24, 3, window=8, segment=4, rank=1, positions="rotary", rngs=rngs
        ): "positions",
    }.items():
        with pytest.raises(ValueError, match=message):
            make()
