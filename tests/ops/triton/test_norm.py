"""One kernel for LayerNorm of keys and values, against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from longshort.ops.triton.norm import normalise_both


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(2, 37, 24), (1, 1, 96), (3, 5, 512), (2, 0, 16), (24,)])
def test_it_is_layer_norm(shape, dtype):
    torch.manual_seed(0)
    width = shape[-1]
    exact = [torch.randn(shape, dtype=torch.float64) + 1 for _ in range(2)] + [
        torch.randn(width, dtype=torch.float64) for _ in range(2)
    ]
    cotangents = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]

    def run(norm, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in exact]
        out = norm(*leaves, 1e-5)
        grads = torch.autograd.grad(out, leaves, [c.to(dtype) for c in cotangents])
        return [t.detach().double() for t in (*out, *grads)]

    def plain(k, v, weight, bias, eps):
        return tuple(F.layer_norm(t, (width,), weight, bias, eps) for t in (k, v))

    expected, ours, theirs = run(plain, torch.float64), run(normalise_both, dtype), run(plain, dtype)
    for a, b, c in zip(ours, theirs, expected, strict=True):
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-6 * c.norm()


def test_weights_may_be_more_exact_than_tokens():
    """As under autocast: the output has the dtype of the tokens."""
    torch.manual_seed(0)
    k, v = (torch.randn(2, 9, 32, dtype=torch.float16, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(32, requires_grad=True) for _ in range(2))
    out, _ = normalise_both(k, v, weight, bias, 1e-5)
    out.sum().backward()
    assert out.dtype == torch.float16 and weight.grad.dtype == torch.float32 and k.grad.dtype == torch.float16
    torch.testing.assert_close(out.float(), F.layer_norm(k.float(), (32,), weight, bias, 1e-5), rtol=0, atol=5e-3)


def test_parts_of_wider_tensors_need_no_copy():
    """As keys and values are that one product made."""
    torch.manual_seed(0)
    both = torch.randn(2, 9, 72, requires_grad=True)
    weight, bias = torch.randn(24), torch.randn(24)
    out = normalise_both(both[..., 24:48], both[..., 48:], weight, bias, 1e-5)
    expected = [F.layer_norm(both[..., a : a + 24], (24,), weight, bias, 1e-5) for a in (24, 48)]
    cotangents = [torch.randn(2, 9, 24) for _ in range(2)]
    torch.testing.assert_close(list(out), expected, rtol=0, atol=1e-5)
    found, wanted = (torch.autograd.grad(y, both, cotangents) for y in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
