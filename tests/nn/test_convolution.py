"""Attention on convolutions: neighbours are seen first, everything else as the attention without them."""

import pytest
import torch
from torch import nn

from longshort import GridLongShortAttention
from longshort.nn.convolution import ConvFullAttention, ConvLongShortAttention, StandardisedDepthwise
from longshort.nn.grid import GridFullAttention

SIZE, TOKENS = (5, 6), 30


def tokens(global_tokens=0, batch=2):
    return torch.randn(batch, global_tokens + TOKENS, 8, dtype=torch.double, generator=torch.Generator().manual_seed(0))


PAIRS = [
    (ConvLongShortAttention, GridLongShortAttention, dict(window=2, rank=3)),
    (ConvFullAttention, GridFullAttention, {}),
]


@pytest.mark.parametrize("global_tokens", [0, 1, 2])
@pytest.mark.parametrize(("kind", "plain", "keywords"), PAIRS)
def test_a_convolution_that_sees_the_token_alone_is_none(kind, plain, keywords, global_tokens):
    torch.manual_seed(0)
    layer = kind(8, 2, global_tokens=global_tokens, **keywords).double().eval()
    other = plain(8, 2, global_tokens=global_tokens, **keywords).double().eval()
    for part in (layer.convolutions.query, layer.convolutions.key, layer.convolutions.value):
        alone(part.convolution.weight)
        part.norm.eps = 0.0
    if (rows := layer.convolutions.rows) is not None:  # whose weights are standardised: taken out of the test
        layer.convolutions.rows = nn.Identity().double()
        assert isinstance(rows, StandardisedDepthwise)
    state = {name: t for name, t in layer.state_dict().items() if not name.startswith("convolutions")}
    other.load_state_dict(state)
    x = tokens(global_tokens)
    torch.testing.assert_close(layer(x, SIZE), other(x, SIZE), atol=1e-12, rtol=0)


def alone(weight):
    weight.data.zero_()
    weight.data[:, :, 1, 1] = 1.0


def test_weights_of_the_logits_are_standardised():
    torch.manual_seed(0)
    layer = StandardisedDepthwise(4).double()
    impulse = torch.zeros(1, 4, 5, 5, dtype=torch.double)
    impulse[:, :, 2, 2] = 1.0
    made = layer(impulse)[0] - layer.bias[:, None, None]  # what the kernel is, turned
    seen = made[:, 1:4, 1:4].flatten(1)
    torch.testing.assert_close(seen.mean(1), torch.zeros(4, dtype=torch.double), atol=1e-12, rtol=0)
    torch.testing.assert_close(seen.std(1), torch.ones(4, dtype=torch.double), atol=1e-3, rtol=0)
    before = layer(impulse)
    layer.weight.data.mul_(3).add_(1)
    torch.testing.assert_close(layer(impulse), before, atol=1e-3, rtol=0)


def test_neighbours_matter_and_the_border_is_zeros():
    torch.manual_seed(0)
    layer = ConvLongShortAttention(8, 2, window=1, rank=0).double().eval()
    x = tokens(batch=1).requires_grad_()
    layer(x, SIZE)[0, 0].sum().backward()  # sees itself and one on every side, and their neighbours
    seen = x.grad[0].abs().sum(1).view(SIZE) > 0
    assert seen[:3, :3].all() and seen.sum() == 9


def test_rank_0_has_no_logits():
    layer = ConvLongShortAttention(8, 2, window=2, rank=0).double()
    assert layer.convolutions.rows is None and layer(tokens(), SIZE).shape == (2, TOKENS, 8)


def test_bad_input_is_refused():
    layer = ConvLongShortAttention(8, 2, window=2, rank=1).double()
    with pytest.raises(ValueError, match="mask is not for it"):
        layer(tokens(), SIZE, mask=torch.ones(2, TOKENS, dtype=torch.bool))
    with pytest.raises(ValueError, match="make 25 tokens, but x has 30"):
        layer(tokens(), (5, 5))
