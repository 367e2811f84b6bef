"""The oracle vectors, computed in float64 from the paper's equations: outputs and all gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention

FILES = sorted((Path(__file__).parents[1] / "fixtures").glob("*.npz"))
PARAMETERS = {
    "w_q": "query.weight",
    "w_k": "key.weight",
    "w_v": "value.weight",
    "w_o": "out.weight",
    "w_p": "rows.weight",
    "b_q": "query.bias",
    "b_k": "key.bias",
    "b_v": "value.bias",
    "b_o": "out.bias",
    "b_p": "rows.bias",
    "ln_local_w": "norm.local.weight",
    "ln_local_b": "norm.local.bias",
    "ln_global_w": "norm.global_.weight",
    "ln_global_b": "norm.global_.bias",
    "u": "positions.content_bias",
    "v": "positions.position_bias",
    "w_r": "positions.local.weight",
    "w_g": "positions.rows.weight",
    "b_g": "positions.rows.bias",
}


def build(kind, meta, width, **keywords):
    common = dict(width=width, heads=meta["heads"], window=meta["window"], rank=meta["rank"], **keywords)
    if kind == "bidirectional":
        return LongShortAttention(**common)
    if kind == "grid":
        return GridLongShortAttention(**common)
    kind = "sliding" if meta["sliding"] else "segment"
    return CausalLongShortAttention(**common, segment=meta["segment"], positions=bool(meta["rel_pos"]), kind=kind)


def load(layer, data, rank):
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


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-5)], ids=["float64", "float32"])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_oracle(path, impl, dtype, tolerance):
    data = dict(np.load(path))
    kind = path.stem.split("_")[0]
    meta = {name[5:]: value.item() for name, value in data.items() if name.startswith("meta.")}
    layer = build(kind, meta, data["x"].shape[2], impl=impl).to(dtype)
    load(layer, data, meta["rank"])
    x = torch.from_numpy(data["x"]).to(dtype).requires_grad_()

    out = run(kind, layer, data, meta, x)
    out.backward(torch.from_numpy(data["cot"]).to(dtype))

    gradients = {"x": x.grad}
    names = dict(layer.named_parameters())
    for short, name in PARAMETERS.items():
        if f"grad.{short}" in data:
            gradients[short] = names[name].grad.T if short.startswith("w_") else names[name].grad
    assert set(gradients) == {name[5:] for name in data if name.startswith("grad.")}
    close(out, data["out"], tolerance, "out")
    for name, gradient in gradients.items():
        close(gradient, data[f"grad.{name}"], tolerance, name)


def close(ours, oracle, tolerance, name):
    oracle = torch.from_numpy(oracle)
    scale = oracle.abs().max().clamp(min=1.0)  # gradients are sums over all tokens
    assert ((ours.double() - oracle).abs().max() / scale).item() <= tolerance, name
