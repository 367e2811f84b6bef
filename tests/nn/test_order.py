"""Global tokens and padding anywhere: what a token comes to depends on the real tokens and their order alone."""

import pytest
import torch

from longshort import LongShortAttention
from longshort.nn.order import first_tokens, marked_tokens

WIDTH = 16


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return LongShortAttention(WIDTH, 2, window=4, rank=3, global_tokens=1, globals_see="tokens").double()


def spread(x, places, length):
    """Tokens of x at these places, NaN elsewhere; and the mask."""
    wide = torch.full((1, length, x.shape[2]), torch.nan, dtype=x.dtype)
    wide[:, places] = x
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, places] = True
    return wide, mask


@pytest.mark.parametrize(
    "places",
    [range(11), range(7, 18), [0, 2, 3, 5, 8, 9, 10, 13, 15, 16, 17], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17]],
    ids=["right", "left", "between", "all over"],
)
def test_padding_of_any_kind_changes_no_real_token(layer, places):
    x = torch.randn(1, 11, WIDTH, dtype=torch.float64)
    wide, mask = spread(x, list(places), 18)
    y = layer(wide, order=first_tokens(wide, mask, 1))
    torch.testing.assert_close(y[:, list(places)], layer(x))


def test_the_first_tokens_are_read_as_they_stand(layer):
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    order = first_tokens(x, mask, 1)
    assert order.places is None and order.tokens is None
    torch.testing.assert_close(layer(x, order=order), layer(x, mask))
    assert first_tokens(x, torch.ones_like(mask), 1).mask is None
    assert first_tokens(x, None, 1).mask is None


def test_marked_tokens_are_read_first(layer):
    x = torch.randn(1, 10, WIDTH, dtype=torch.float64)
    marked = torch.zeros(1, 10, dtype=torch.bool)
    marked[:, [3, 7]] = True
    moved = [3, 7, 0, 1, 2, 4, 5, 6, 8, 9]
    layer.global_tokens = 2
    expected = layer(x[:, moved])
    layer.global_tokens = 1
    y = layer(x, order=marked_tokens(x, None, marked))
    torch.testing.assert_close(y[:, moved], expected)


def test_how_many_are_marked_in_others_changes_nothing(layer):
    x = torch.randn(3, 10, WIDTH, dtype=torch.float64)
    marked = torch.arange(10) < torch.tensor([[1], [4], [0]])
    mask = torch.arange(10) < torch.tensor([[10], [8], [6]])
    together = layer(x, order=marked_tokens(x, mask, marked))
    for i in range(3):
        alone = layer(x[i : i + 1], order=marked_tokens(x[i : i + 1], mask[i : i + 1], marked[i : i + 1]))
        torch.testing.assert_close(together[i][mask[i]], alone[0][mask[i]])


@pytest.mark.parametrize("count", [1, 3])
def test_texts_shorter_than_the_global_tokens(layer, count):
    x = torch.randn(2, 2, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False], [False, False]])
    y = layer(x, order=first_tokens(x, mask, count))
    y.sum().backward()
    assert y.shape == x.shape and y.isfinite().all() and x.grad.isfinite().all()
    torch.testing.assert_close(y[0, 1], layer.out.bias)  # padding comes to 0 before the output projection
    alone = layer(x[:1, :1], order=first_tokens(x[:1, :1], None, count))
    torch.testing.assert_close(y[:1, :1], alone)


def test_gradients_are_those_of_the_tokens_in_a_row(layer):
    x = torch.randn(1, 11, WIDTH, dtype=torch.float64, requires_grad=True)
    places = [0, 2, 3, 5, 8, 9, 10, 13, 15, 16, 17]
    wide, mask = spread(x, places, 18)
    cotangent = torch.randn(1, 11, WIDTH, dtype=torch.float64)
    (spread_gradient,) = torch.autograd.grad(
        (layer(wide, order=first_tokens(wide, mask, 1))[:, places] * cotangent).sum(), x
    )
    (gradient,) = torch.autograd.grad((layer(x) * cotangent).sum(), x)
    torch.testing.assert_close(spread_gradient, gradient)


def test_globals_see_tokens_as_full_attention_does(layer):
    """With the window over all, no rows and no norms, CLS and the others attend as in full attention."""
    full = LongShortAttention(WIDTH, 2, window=16, rank=0, global_tokens=1, globals_see="tokens", dual_norm=False)
    x = torch.randn(2, 10, WIDTH)
    q, k, v = (full.split(t) for t in full.project(x))
    expected = full.out(full.merge(torch.nn.functional.scaled_dot_product_attention(q, k, v)))
    torch.testing.assert_close(full(x), expected)
    other = LongShortAttention(WIDTH, 2, window=16, rank=0, global_tokens=1, dual_norm=False)
    other.load_state_dict(full.state_dict())
    assert (other(x)[:, 0] - expected[:, 0]).abs().max() > 1e-3  # they see outputs there
    torch.testing.assert_close(other(x)[:, 1:], expected[:, 1:])


def test_bad_orders_are_refused(layer):
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match="an order, which has its own mask"):
        layer(x, torch.ones(1, 6, dtype=torch.bool), order=first_tokens(x, None, 1))
    with pytest.raises(ValueError, match="marked must be bool"):
        marked_tokens(x, None, torch.ones(1, 6))
    with pytest.raises(ValueError, match="mask must have shape"):
        first_tokens(x, torch.ones(1, 5, dtype=torch.bool), 1)
    with pytest.raises(ValueError, match="globals_see must be 'outputs' or 'tokens'"):
        LongShortAttention(WIDTH, 2, window=4, rank=3, globals_see="all")
