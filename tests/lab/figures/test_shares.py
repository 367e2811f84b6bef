"""Where attention goes: the parts of window and rows, as the dense softmax has them."""

import numpy as np
import pytest
import torch

from longshort import CausalLongShortAttention
from longshort.lab.figures.shares import draw_shares, shares_of_rows, shares_on
from longshort.models import CharLM, CharLMConfig


class Alone(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, cache=None):
        return self.layer(x, cache)


@pytest.mark.parametrize("positions", [True, False, "rotary"])
def test_parts_are_those_of_the_softmax(positions):
    torch.manual_seed(0)
    layer = CausalLongShortAttention(8, 1, window=5, segment=4, rank=1, positions=positions).double()
    x = torch.randn(1, 13, 8, dtype=torch.float64)
    (shares,) = shares_of_rows(Alone(layer), x)  # [13, 1]
    q, seen, tables = layer.inputs(x, None)
    seen = seen._replace(v=torch.zeros_like(seen.v))
    # the part of each row by itself: a value of 1 for that row alone
    parts = []
    for row in range(seen.k_global.shape[2]):
        ones = torch.zeros_like(seen.v_global)
        ones[:, :, row] = 1.0
        parts.append(layer.attend(q, seen._replace(v_global=ones), tables)[0, 0, :, 0])
    torch.testing.assert_close(shares[:, 0].double(), torch.stack(parts).sum(0), rtol=0, atol=1e-6)
    assert shares[:4].abs().max() == 0  # the first segment sees no row
    assert (shares[4:] > 0).all() and (shares < 1).all()


def test_all_layers_in_order_and_nothing_left_behind():
    torch.manual_seed(0)
    model = CharLM(CharLMConfig(layers=3, width=8, heads=2, feedforward=8, window=8, segment=4, rank=(0, 1, 1)))
    tokens = torch.randint(0, 256, (2, 24))
    with torch.no_grad():
        before, caches = model.eval()(tokens)
    shares = shares_of_rows(model, tokens, caches)
    assert [tuple(s.shape) for s in shares] == [(24, 2)] * 3
    assert shares[0].abs().max() == 0 and shares[1].min() > 0  # rank 0 has no rows; with a cache all see some
    with torch.no_grad():
        assert torch.equal(model(tokens)[0], before)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)


def test_what_fills_a_cache_gets_nothing():
    torch.manual_seed(0)
    model = CharLM(CharLMConfig(layers=2, width=8, heads=2, feedforward=8, window=8, segment=4, memory=32)).eval()
    tokens = torch.randint(0, 256, (1, 6))
    with torch.no_grad():
        _, caches = model(tokens)
    plain, filled = shares_of_rows(model, tokens, caches), shares_of_rows(model, tokens, model.filled(caches))
    torch.testing.assert_close(filled, plain, rtol=0, atol=1e-6)


def test_bars_are_drawn_where_they_belong(tmp_path, figures):
    draw_shares([torch.full((4, 2), 0.25), torch.tensor([[0.0, 1.0]])], tmp_path / "a.png", title="a title")
    axes = figures[0].axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([75, 50, 25, 50])
    assert axes.get_title(loc="left") == "a title"
    assert [t.get_text() for t in axes.texts] == ["25 % rows", "50 % rows"]


def test_a_text_is_looked_at_with_its_past():
    torch.manual_seed(0)
    model = CharLM(CharLMConfig(layers=1, width=8, heads=2, feedforward=8, window=8, segment=4))
    text = np.arange(40, dtype=np.uint8)
    tokens = torch.from_numpy(text)[None].long()
    (shares,) = shares_on(model, text, 12)
    (whole,) = shares_of_rows(model, tokens[:, :24])
    torch.testing.assert_close(shares, whole[12:])
    assert len(shares_on(model, text, 1_000)[0]) == 20  # of a text that is shorter, half
    with pytest.raises(ValueError, match="1 bytes is too short"):
        shares_on(model, text[:1], 12)
