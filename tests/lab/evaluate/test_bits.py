"""Every character is counted once, from as much context as the protocol says, however the work is divided."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longshort.lab.evaluate.bits import Reading, Windows, bits, spans, work
from longshort.models import CharLMConfig

TINY = CharLMConfig(layers=2, width=16, heads=2, feedforward=24, window=8, segment=4, positions="rotary")
PROTOCOLS = [Windows(16, 4, batch=3), Windows(7, 7, batch=2), Windows(9, 1, batch=8), Reading(12, 3), Reading(0, 5)]
each = pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = TINY.build().double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def text(n):
    return np.random.default_rng(0).integers(0, 256, n, dtype=np.uint8)


def counted(spans):
    return [at for span in spans for at in range(span.end - span.counted, span.end)]


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 60))
def test_spans_count_each_prediction_once(n, length, step):
    made = spans(n, length, min(step, length))
    assert counted(made) == list(range(n))
    assert {span.end - span.start for span in made} == {min(length, n)}
    assert all(span.start >= 0 and 1 <= span.counted <= span.end - span.start and span.end <= n for span in made)
    assert all(b.end - a.end <= min(step, length) for a, b in pairwise(made))


@given(st.integers(1, 200), st.integers(0, 60), st.integers(1, 9))
def test_a_reading_reads_each_character_once_after_its_context(n, context, batch):
    made = Reading(context, batch).spans(n)
    assert counted(made) == list(range(n)) and len(made) <= batch
    assert all(span.end - span.start - span.counted >= context for span in made[1:] if span.counted)
    assert sum(span.end - span.start for span in made) <= n + batch * (context + 1) + batch * batch


def by_hand(model, text, context_of):
    """Bits of each character but the first, one pass each, over text[context_of(place):place]."""
    tokens, total = torch.from_numpy(text).long()[None], 0.0
    with torch.no_grad():
        for place in range(1, len(text)):
            logits = model(tokens[:, context_of(place) : place])[0][0, -1]
            total -= logits.log_softmax(dim=0)[tokens[0, place]].item() / math.log(2)
    return total


def test_windows_see_exactly_their_context(model):
    """One character a step: each is predicted from just the `context` characters before it."""
    total, count = bits(model, text(40), Windows(context=9, step=1, batch=4))
    assert count == 39
    assert total == pytest.approx(by_hand(model, text(40), lambda place: max(place - 9, 0)), rel=1e-6)
    assert total != pytest.approx(by_hand(model, text(40), lambda place: max(place - 10, 0)), rel=1e-6)


def test_windows_of_many_characters_start_where_they_should(model):
    """Four at a time: from the first character of a window of 12 on, so that the context is 9 to 12."""
    ends = [12, 16, 20, 24, 28, 32, 36, 39]  # after how many characters, of 40, the sequences end

    def start(place):
        return next(end for end in ends if end >= place) - 12

    total, count = bits(model, text(40), Windows(context=12, step=4, batch=3))
    assert count == 39
    assert total == pytest.approx(by_hand(model, text(40), start), rel=1e-6)


def test_a_reading_by_one_lane_is_one_pass(model):
    tokens = torch.from_numpy(text(61)).long()[None]
    with torch.no_grad():
        losses = F.cross_entropy(model(tokens[:, :-1])[0][0], tokens[0, 1:], reduction="sum").item()
    for context in (0, 30, 100):
        total, count = bits(model, text(61), Reading(context, batch=1))
        assert count == 60 and total == pytest.approx(losses / math.log(2), rel=1e-6)


@each
def test_blocks_do_not_matter_to_a_model_without_a_bound(model, protocol):
    whole = bits(model, text(50), protocol)
    for block in (1, 5, 1000):
        total, count = bits(model, text(50), protocol, block=block)
        assert count == whole[1] and total == pytest.approx(whole[0], rel=1e-6)


@each
def test_parts_add_up_to_the_whole(model, protocol):
    whole = bits(model, text(50), protocol)
    for parts in (2, 7):
        made = [bits(model, text(50), protocol, part, parts) for part in range(parts)]
        assert sum(count for _, count in made) == whole[1] == 49
        assert sum(total for total, _ in made) == pytest.approx(whole[0], rel=1e-6)


@each
def test_told_is_the_work(model, protocol):
    told = []
    bits(model, text(50), protocol, block=5, advance=told.append)
    assert sum(told) == work(text(50), protocol)


def test_batches_have_one_shape(model):
    shapes = []
    handle = model.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape))
    bits(model, text(50), Windows(16, 4, batch=4))  # ten sequences
    handle.remove()
    assert set(shapes) == {(4, 16)} and len(shapes) == 3


class Indifferent(nn.Module):
    """All characters are alike to it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, tokens, caches=None):
        return self.weight.expand(*tokens.shape, 256), caches


@each
@pytest.mark.parametrize("n", [2, 3, 50])
def test_who_knows_nothing_needs_eight_bits(protocol, n):
    total, count = bits(Indifferent(), text(n), protocol)
    assert count == n - 1
    assert total / count == pytest.approx(8.0, rel=1e-7)


def test_no_gradient_is_kept(model):
    bits(model, text(20), Reading(4, 2))
    assert all(p.grad is None for p in model.parameters()) and torch.is_grad_enabled()


@pytest.mark.parametrize("n", [0, 1])
def test_a_text_without_predictions_is_refused(model, n):
    with pytest.raises(ValueError, match=f"text of {n} bytes has nothing to predict"):
        bits(model, text(n), Reading())


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Windows(context=4, step=5), ["step 5", "context 4"]),
        (lambda: Windows(step=0), ["step 0"]),
        (lambda: Windows(batch=0), ["batch 0"]),
        (lambda: Reading(context=-1), ["context -1"]),
        (lambda: Reading(batch=0), ["batch 0"]),
    ],
)
def test_a_bad_protocol_is_refused_by_name(make, words):
    with pytest.raises(ValueError) as e:
        make()
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.parametrize("block", [0, -3])
def test_a_bad_block_is_refused(model, block):
    with pytest.raises(ValueError, match=f"block must be at least 1, got {block}"):
        bits(model, text(9), Reading(), block=block)
