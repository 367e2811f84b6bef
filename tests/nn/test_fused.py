"""The layer as one step of autograd is the layer: output, cache and every gradient, in Triton's interpreter."""

import copy

import pytest
import torch
from layers import output
from torch import nn

pytest.importorskip("triton")

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
from longshort.nn import fused

PADDED = torch.arange(40) < torch.tensor([[40], [23]])
LAYERS = {
    "sequence": (lambda **k: LongShortAttention(32, 2, window=8, rank=6, **k), 40, (None,)),
    "padded": (lambda **k: LongShortAttention(32, 2, window=8, rank=6, **k), 40, (PADDED,)),
    "causal": (lambda **k: CausalLongShortAttention(32, 2, window=9, segment=4, rank=1, bias=True, **k), 41, ()),
    "no positions": (
        lambda **k: CausalLongShortAttention(32, 2, window=9, segment=4, rank=2, positions=False, **k),
        41,
        (),
    ),
    "grid": (lambda **k: GridLongShortAttention(32, 2, window=4, rank=6, relative_bias=True, **k), 42, ((6, 7),)),
}
layers = pytest.mark.parametrize("name", LAYERS)


def gradients(layer, x, rest):
    x = x.detach().to(next(layer.parameters()).dtype).requires_grad_()
    y = layer(x, *rest)
    y, cache = y if isinstance(y, tuple) else (y, None)
    torch.manual_seed(1)
    grads = torch.autograd.grad((y * torch.randn(y.shape)).sum(), [x, *layer.parameters()])
    kept = [] if cache is None else [cache.k, cache.v, cache.k_global, cache.v_global, cache.logits]
    return [t.detach().double() for t in (y, *grads, *kept)]


@layers
def test_it_is_the_layer(name, monkeypatch):
    torch.manual_seed(0)
    make, n, rest = LAYERS[name]
    layer, x = make(impl="triton"), torch.randn(2, n, 32)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)  # biases and norms too have something to say
    calls = []
    monkeypatch.setattr(fused._Layer, "apply", count(fused._Layer.apply, calls))
    ours = gradients(layer, x, rest)
    assert calls
    plain = copy.deepcopy(layer).double()
    plain.impl = "reference"
    for a, b in zip(ours, gradients(plain, x, rest), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=3e-5 * max(1.0, b.abs().max().item()))


def count(function, calls):
    def counted(*args):
        calls.append(1)
        return function(*args)

    return counted


def test_modules_that_someone_watches_or_changed_are_called():
    layer, x = LongShortAttention(32, 2, window=8, rank=6, impl="triton"), torch.randn(1, 20, 32)
    assert fused.fusible(layer, x, layer.geometry)
    seen = []
    handle = layer.value.register_forward_hook(lambda *_: seen.append(1))
    assert not fused.fusible(layer, x, layer.geometry)
    layer(x)
    assert seen
    handle.remove()
    assert fused.fusible(layer, x, layer.geometry)
    handle = layer.query.register_full_backward_hook(lambda *_: None)
    assert not fused.fusible(layer, x, layer.geometry)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not fused.fusible(layer, x, layer.geometry)
    handle.remove()
    layer.out.forward = layer.out.forward  # as some libraries wrap it
    assert not fused.fusible(layer, x, layer.geometry)
    del layer.out.forward
    assert fused.fusible(layer, x, layer.geometry)
    layer.norm.global_ = nn.LayerNorm(32)
    assert not fused.fusible(layer, x, layer.geometry)
    layer.norm.global_ = layer.norm.local
    layer.query = nn.Sequential(layer.query, nn.Identity())
    assert not fused.fusible(layer, x, layer.geometry)


@layers
def test_the_output_can_be_written_into(name):
    make, n, rest = LAYERS[name]
    x = torch.randn(2, n, 32, requires_grad=True)
    y = output(make(impl="triton"), x, *rest)
    y += x
    y.sum().backward()
    assert x.grad is not None


@layers
def test_a_gradient_that_is_one_number(name):
    """As a sum's is: expanded, with strides of 0."""
    torch.manual_seed(0)
    make, n, rest = LAYERS[name]
    layer, x = make(impl="triton"), torch.randn(2, n, 32)
    found = torch.autograd.grad(output(layer, x, *rest).sum(), list(layer.parameters()))
    layer.impl = "reference"
    for a, b in zip(found, torch.autograd.grad(output(layer, x, *rest).sum(), list(layer.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=3e-5 * max(1.0, b.abs().max().item()))


@layers
def test_an_empty_batch(name):
    make, n, rest = LAYERS[name]
    x = torch.randn(0, n, 32, requires_grad=True)
    layer = make(impl="triton")
    output(layer, x, *(t[:0] if isinstance(t, torch.Tensor) else t for t in rest)).sum().backward()
    assert x.grad.shape == x.shape
    assert all((p.grad == 0).all() for p in layer.parameters())


def test_backward_under_autocast_of_a_forward_without():
    torch.manual_seed(0)
    layer, x = LongShortAttention(32, 2, window=8, rank=6, impl="triton"), torch.randn(1, 40, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    y = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, expected)


def test_eps_of_nothing():
    layer = CausalLongShortAttention(32, 2, window=9, segment=4, rank=1, eps=0.0, impl="triton")
    layer(torch.randn(1, 21, 32))[0].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_dropout_and_frozen_weights():
    torch.manual_seed(0)
    layer = LongShortAttention(32, 2, window=8, rank=6, dropout=0.3, impl="triton")
    x = torch.randn(1, 40, 32)
    torch.manual_seed(5)
    y = layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), y)
    layer.requires_grad_(False)
    layer.out.weight.requires_grad_(True)
    layer(x).sum().backward()
    assert layer.out.weight.grad is not None and layer.query.weight.grad is None
