"""Bad input is refused with the argument's name and the numbers."""

import pytest
import torch

from longshort import (
    Causal,
    CausalLongShortAttention,
    GridLongShortAttention,
    LongShortAttention,
    RelativePositions,
    Segments,
    Tiles,
    dynamic_projection,
    long_short_attention,
)

SEQUENCE = dict(width=12, heads=3, window=4, rank=2)
TEXT = dict(**SEQUENCE, segment=4)


@pytest.mark.parametrize(
    "layer, keywords, words",
    [
        (LongShortAttention, dict(width=10), ["width 10", "heads 3"]),
        (LongShortAttention, dict(heads=0), ["heads 0"]),
        (LongShortAttention, dict(window=0, rank=0), ["window", "rank", "0"]),
        (LongShortAttention, dict(window=-1), ["window", "-1"]),
        (LongShortAttention, dict(window=2.5), ["window", "2.5"]),
        (LongShortAttention, dict(rank=-2), ["rank", "-2"]),
        (LongShortAttention, dict(global_tokens=-1), ["global_tokens", "-1"]),
        (LongShortAttention, dict(dropout=1.0), ["dropout", "1.0"]),
        (LongShortAttention, dict(impl="flash"), ["impl", "flash", "chunked"]),
        (GridLongShortAttention, dict(window=0, rank=0), ["window", "rank"]),
        (GridLongShortAttention, dict(window=0, relative_bias=True), ["relative_bias", "window"]),
        (CausalLongShortAttention, dict(window=4, segment=8), ["window 4", "segment 8"]),
        (CausalLongShortAttention, dict(segment=0), ["segment", "0"]),
        (CausalLongShortAttention, dict(window=0), ["window", "0"]),
        (CausalLongShortAttention, dict(memory=-1), ["memory", "-1"]),
        (CausalLongShortAttention, dict(kind="round"), ["kind", "round", "sliding"]),
    ],
)
def test_constructors(layer, keywords, words):
    base = TEXT if layer is CausalLongShortAttention else SEQUENCE
    with pytest.raises(ValueError) as e:
        layer(**{**base, **keywords})
    assert all(word in str(e.value) for word in words), str(e.value)


X = torch.zeros(2, 20, 12)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([torch.zeros(2, 20, 11)], ["width 12", "(2, 20, 11)"]),
        ([torch.zeros(20, 12)], ["(20, 12)"]),
        ([torch.zeros(2, 0, 12)], ["(2, 0, 12)"]),
        ([torch.zeros(2, 20, 12, dtype=torch.float64)], ["float64", "float32"]),
        ([torch.zeros(2, 20, 12, dtype=torch.int64)], ["int64", "float32"]),
        ([torch.zeros(2, 20, 12, device="meta")], ["meta", "cpu"]),
        ([X, torch.ones(2, 20)], ["mask", "bool", "float32"]),
        ([X, torch.ones(2, 19, dtype=torch.bool)], ["mask", "(2, 20)", "(2, 19)"]),
        ([X, torch.ones(20, dtype=torch.bool)], ["mask", "(20,)"]),
        ([X, torch.ones(2, 20, dtype=torch.bool, device="meta")], ["mask", "meta"]),
    ],
)
def test_sequence_input(arguments, words):
    with pytest.raises(ValueError) as e:
        LongShortAttention(**SEQUENCE)(*arguments)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_only_global_tokens():
    with pytest.raises(ValueError, match="2 tokens, of which 2 are global"):
        LongShortAttention(**SEQUENCE, global_tokens=2)(torch.zeros(1, 2, 12))


def test_size_of_another_image():
    with pytest.raises(ValueError, match=r"size \(4, 6\).*24.*20"):
        GridLongShortAttention(**SEQUENCE)(X, size=(4, 6))
    with pytest.raises(ValueError, match=r"1 global tokens make 21 tokens, but x has 20"):
        GridLongShortAttention(**SEQUENCE, global_tokens=1)(X, size=(4, 5))
    for size in ((-4, -5), (4.0, 5.0)):
        with pytest.raises(ValueError, match=r"size must be whole numbers of at least 1, got \(-?4"):
            GridLongShortAttention(**SEQUENCE)(X, size=size)


def test_caches_of_others():
    layer = CausalLongShortAttention(**TEXT)
    _, cache = layer(X)
    with pytest.raises(ValueError, match="cache is of batch 2 but x is of batch 3"):
        layer(torch.zeros(3, 5, 12), cache)
    for other in (dict(heads=2), dict(window=8), dict(segment=2), dict(rank=1), dict(kind="segment")):
        with pytest.raises(ValueError, match="cache is of another layer: 3 heads of width 4"):
            CausalLongShortAttention(**{**TEXT, **other})(X, cache)
    with pytest.raises(ValueError, match="cache must be a CausalCache that this layer returned, got Tensor"):
        layer(X, torch.ones(2, 20, dtype=torch.bool))
    for index in (torch.tensor([0.5]), [0, 0]):
        with pytest.raises(ValueError, match="index must be a tensor with one axis of integers"):
            cache.reorder(index)


def operands(n=20, rows=2, **changes):
    q, k, v = (torch.zeros(2, 3, n, 4) for _ in range(3))
    tensors = dict(q=q, k=k, v=v, k_global=torch.zeros(2, 3, rows, 4), v_global=torch.zeros(2, 3, rows, 4))
    return {**tensors, "geometry": Segments(4), **changes}


POSITIONS = RelativePositions(*(torch.zeros(3, 4) for _ in range(2)), *(torch.zeros(3, 8, 4) for _ in range(2)))


@pytest.mark.parametrize(
    "keywords, words",
    [
        (operands(q=torch.zeros(2, 20, 12)), ["q", "(2, 20, 12)"]),
        (operands(k=torch.zeros(2, 3, 20, 5)), ["k", "(2, 3, 20, 5)"]),
        (operands(v=torch.zeros(2, 3, 19, 4)), ["k and v", "(2, 3, 19, 4)"]),
        (operands(k=torch.zeros(2, 3, 21, 4), v=torch.zeros(2, 3, 21, 4)), ["21", "20", "causal"]),
        (operands(v_global=torch.zeros(2, 3, 1, 4)), ["k_global and v_global"]),
        (operands(v=torch.zeros(2, 3, 20, 4, dtype=torch.float64)), ["v is torch.float64", "q is torch.float32"]),
        (operands(v=torch.zeros(2, 3, 20, 4, device="meta")), ["v is on meta", "cpu"]),
        (operands(mask=torch.ones(2, 20)), ["mask", "bool"]),
        (operands(mask_global=torch.ones(2, 3, dtype=torch.bool)), ["mask_global", "(2, 2)", "(2, 3)"]),
        (operands(dropout=1.5), ["dropout", "1.5"]),
        (operands(impl="cuda"), ["impl", "cuda", "reference"]),
        (operands(rows=0, geometry=Segments(0)), ["window is 0", "no rows"]),
        (operands(geometry=Tiles(2, 4, 6)), ["(4, 6)", "24", "20"]),
        (operands(start=3), ["start", "3", "causal"]),
        (operands(positions=POSITIONS), ["positions", "Segments"]),
        (operands(bias=torch.zeros(3, 5, 5)), ["bias", "Segments"]),
        (operands(bias=torch.zeros(3, 4, 4), geometry=Tiles(2, 4, 5)), ["bias", "[3, 5, 5]", "(3, 4, 4)"]),
        (operands(bias=torch.zeros(3, 0, 0), geometry=Tiles(0, 4, 5)), ["window is 0", "bias"]),
        (operands(geometry=Causal(8, 4, 1), rows=6), ["k_global has 6 rows", "5"]),
        (operands(geometry=Causal(8, 4, 1), start=-1), ["start", "-1"]),
        (operands(geometry=Causal(9, 4, 1), positions=POSITIONS), ["positions.local", "9 or more", "(3, 8, 4)"]),
        (
            operands(geometry=Causal(8, 4, 1), positions=POSITIONS._replace(content_bias=torch.zeros(4, 3))),
            ["positions.content_bias", "[3, 4]", "(4, 3)"],
        ),
    ],
)
def test_operation(keywords, words):
    with pytest.raises(ValueError) as e:
        long_short_attention(**keywords)
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.parametrize(
    "logits, keywords, words",
    [
        (torch.zeros(2, 20, 7), {}, ["logits", "3 heads", "(2, 20, 7)"]),
        (torch.zeros(2, 19, 6), {}, ["logits", "20", "(2, 19, 6)"]),
        (torch.zeros(2, 20, 6), dict(segment=0), ["segment", "0"]),
        (torch.zeros(2, 20, 6), dict(mask=torch.ones(2, 3, dtype=torch.bool)), ["mask", "(2, 20)", "(2, 3)"]),
        (torch.zeros(2, 20, 6, dtype=torch.float64), {}, ["logits is torch.float64"]),
    ],
)
def test_projection(logits, keywords, words):
    k = torch.zeros(2, 3, 20, 4)
    with pytest.raises(ValueError) as e:
        dynamic_projection(logits, k, k, **keywords)
    assert all(word in str(e.value) for word in words), str(e.value)
