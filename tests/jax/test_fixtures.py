"""The oracle vectors in JAX: outputs and all gradients, by both implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracle import FILES, PARAMETERS, settings_of

from longshort.jax import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
from longshort.jax.weights import parameters

LAYERS = {
    "bidirectional": LongShortAttention,
    "grid": GridLongShortAttention,
    "causal": CausalLongShortAttention,
}
# The files' gradients came from a cotangent that they hold rounded to float32: see tests/nn/test_fixtures.py.
TOLERANCES = {"float64": (1e-9, 1e-7), "float32": (1e-5, 1e-5)}


def read(path, impl, dtype):
    """The layer with its weights, a function of layer and x, and the oracle's arrays."""
    data = dict(np.load(path))
    kind, meta, settings = settings_of(path, data)
    layer = LAYERS[kind](**settings, impl=impl, dtype=dtype, rngs=nnx.Rngs(0))
    nnx.update(layer, jax.tree.map(lambda t: t.astype(dtype), nnx.state(layer)))
    places = parameters(layer)
    for short, name in PARAMETERS.items():
        if f"p.{short}" in data and name in places and places[name][0].size:
            variable, turned = places[name]
            assert turned == short.startswith("w_")
            variable[...] = jnp.asarray(data[f"p.{short}"], dtype)  # which stands there as x @ w + b

    def run(layer, x):
        if kind == "bidirectional":
            return layer(x, jnp.asarray(data["valid"]))
        if kind == "grid":
            return layer(x, size=(meta["height"], meta["width"]))
        return layer(x)[0]

    return layer, run, data


def error(ours, oracle):
    """Largest difference, against the largest entry where that is over 1: gradients are sums over all tokens."""
    return np.abs(np.asarray(ours, np.float64) - oracle).max() / max(np.abs(oracle).max(), 1.0)


@pytest.mark.parametrize("impl, dtype", [("reference", "float64"), ("chunked", "float32")])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_oracle(path, impl, dtype):
    with jax.enable_x64(dtype == "float64"):
        layer, run, data = read(path, impl, dtype)

        @nnx.jit
        def both(layer, x):
            def total(layer, x):
                out = run(layer, x)
                return (out * jnp.asarray(data["cot"], dtype)).sum(), out

            return nnx.value_and_grad(total, argnums=(0, 1), has_aux=True)(layer, x)

        (_, out), (by_weight, by_x) = both(layer, jnp.asarray(data["x"], dtype))
        of_output, of_gradients = TOLERANCES[dtype]
        assert out.dtype == dtype and error(out, data["out"]) <= of_output
        grads = {name: variable[...] for name, (variable, _) in parameters(by_weight).items()}
        named = {short: grads[name] for short, name in PARAMETERS.items() if f"grad.{short}" in data} | {"x": by_x}
        assert set(named) == {name[5:] for name in data if name.startswith("grad.")}
        for name, gradient in named.items():
            assert error(gradient, data[f"grad.{name}"]) <= of_gradients, name
