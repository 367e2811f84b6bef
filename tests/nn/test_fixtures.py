"""The oracle vectors, computed in float64 from the paper's equations: outputs and all gradients."""

import numpy as np
import pytest
import torch
from oracle import FILES, PARAMETERS, settings_of

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention

LAYERS = {
    "bidirectional": LongShortAttention,
    "grid": GridLongShortAttention,
    "causal": CausalLongShortAttention,
}


def load(layer, data):
    """Weights stand in the files as x @ w + b."""
    state = layer.state_dict()
    for short, name in PARAMETERS.items():
        if f"p.{short}" in data and name in state and state[name].numel():
            weight = torch.from_numpy(data[f"p.{short}"])
            state[name].copy_(weight.T if short.startswith("w_") else weight)


def run(kind, layer, data, meta, x):
    if kind == "bidirectional":
        return layer(x, torch.from_numpy(data["valid"]))
    if kind == "grid":
        return layer(x, size=(meta["height"], meta["width"]))
    return layer(x)[0]


def read(path, impl, dtype):
    """The layer with its weights, a function of x, and the oracle's arrays."""
    data = dict(np.load(path))
    kind, meta, settings = settings_of(path, data)
    layer = LAYERS[kind](**settings, impl=impl).to(dtype)
    load(layer, data)
    return layer, lambda x: run(kind, layer, data, meta, x), data


def gradients(layer, data):
    """By the oracle's names, in its orientation; all that it has, and none that it has not."""
    parameters = dict(layer.named_parameters())
    named = {short: parameters[name].grad for short, name in PARAMETERS.items() if f"grad.{short}" in data}
    assert set(named) | {"x"} == {name[5:] for name in data if name.startswith("grad.")}
    return {short: g.T if short.startswith("w_") else g for short, g in named.items()}


def error(ours, oracle):
    """Largest difference, against the largest entry where that is over 1: gradients are sums over all tokens."""
    oracle = torch.from_numpy(oracle)
    return ((ours.double() - oracle).abs().max() / oracle.abs().max().clamp(min=1.0)).item()


# The files hold `cot` rounded to float32, but their gradients came from the unrounded one: grad.b_o, which is no more
# than the sum of cot, differs from that sum by 3e-7 to 1e-6. So 1e-9 can be asked of the outputs, and of the gradients
# only where the unrounded cot can be found again, which the second test does.
TOLERANCES = {torch.float64: (1e-9, 1e-7), torch.float32: (2e-5, 2e-5)}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_oracle(path, impl, dtype):
    layer, f, data = read(path, impl, dtype)
    x = torch.from_numpy(data["x"]).to(dtype).requires_grad_()
    out = f(x)
    out.backward(torch.from_numpy(data["cot"]).to(dtype))
    of_output, of_gradients = TOLERANCES[dtype]
    assert error(out, data["out"]) <= of_output
    for name, gradient in {"x": x.grad, **gradients(layer, data)}.items():
        assert error(gradient, data[f"grad.{name}"]) <= of_gradients, name


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("stem", ["bidirectional_4", "causal_4", "grid_2"])
def test_oracle_gradients_to_1e_9(stem, impl):
    """The correction to cot within float32 rounding that explains grad.x must explain every other gradient to 1e-9."""
    layer, f, data = read(next(path for path in FILES if path.stem == stem), impl, torch.float64)
    x, cot = (torch.from_numpy(data[name]).double() for name in ("x", "cot"))
    jacobian = torch.autograd.functional.jacobian(f, x).flatten(0, 2).flatten(1)
    missing = torch.from_numpy(data["grad.x"]).flatten() - jacobian.T @ cot.flatten()
    correction = torch.linalg.lstsq(jacobian.T, missing[:, None], driver="gelsd").solution.view_as(cot)
    assert correction.abs().max() < 2.0**-23
    f(x).backward(cot + correction)
    for name, gradient in gradients(layer, data).items():
        assert error(gradient, data[f"grad.{name}"]) <= 1e-9, name
