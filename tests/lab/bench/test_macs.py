"""Multiply-accumulates: as fvcore counts them, equal to the paper's, and without a trace left in the model."""

import pytest
import torch
from torch import nn

from longshort import ops
from longshort.lab.bench.lra import counted, macs_of
from longshort.lab.bench.macs import count
from longshort.models.sequence import SequenceConfig
from longshort.nn import LongShortAttention
from longshort.nn.spec import Full, FullAttention, LongShort

SPECS_OWN = {  # 0.683 as measured of the authors' own code, where the paper has 0.69
    "text_paper/0,128": 0.68,
}


@pytest.mark.filterwarnings("ignore:distutils:DeprecationWarning")  # performer-pytorch asks for versions
@pytest.mark.parametrize("line", counted(), ids=lambda line: line.name)
def test_the_papers_table(line):
    """To its two digits."""
    assert f"{macs_of(line):.2f}" == f"{SPECS_OWN.get(line.name, line.macs):.2f}"


def test_a_linear_layer_is_its_weights():
    assert count(nn.Linear(7, 5), torch.zeros(1, 7)) == 35
    assert count(nn.Linear(7, 5), torch.zeros(4, 7)) == 35
    assert count(nn.LayerNorm(6), torch.zeros(1, 6)) == 5 * 6


def test_full_attention_is_two_products_for_each_pair():
    n, width = 10, 8
    assert count(FullAttention(width, 2), torch.zeros(1, n, width)) == 4 * n * width**2 + 2 * n * n * width


def test_long_short_attention_is_two_products_for_each_pair_that_sees():
    n, width, window, rank = 24, 8, 4, 3
    layer = LongShortAttention(width, 2, window=window, rank=rank)
    pairs = n * (2 * window + rank) - 2 * window * (window // 2)  # no keys beyond the ends
    linear = 4 * n * width**2 + n * width * 2 * rank
    rows = 2 * n * rank * width
    norms = 5 * 2 * (n + rank) * width
    assert count(layer, torch.zeros(1, n, width)) == linear + rows + norms + 2 * pairs * width


def test_counting_leaves_the_model_as_it_was():
    known = dict(ops.IMPLEMENTATIONS)
    torch.manual_seed(0)
    model = SequenceConfig(LongShort(4, 2), classes=3, length=20, dropout=0.5).build()
    tokens = torch.ones(1, 20, dtype=torch.long)
    before = model.eval()(tokens)
    model.train()
    count(model, tokens)
    assert known == ops.IMPLEMENTATIONS and model.training
    assert {layer.impl for layer in model.modules() if hasattr(layer, "impl")} == {"auto"}
    assert torch.equal(model.eval()(tokens), before)


def test_a_failed_count_leaves_the_model_as_it_was():
    known = dict(ops.IMPLEMENTATIONS)
    model = SequenceConfig(Full(), classes=3, length=20).build()
    with pytest.raises(ValueError, match="longer than the model's 20"):
        count(model, torch.ones(1, 21, dtype=torch.long))
    assert known == ops.IMPLEMENTATIONS and model.training
