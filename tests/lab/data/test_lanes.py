"""Lanes read a text on and on: contiguous, wrapping, each byte once a pass, a pure function of the step."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshort.lab.data import Shard, open_text
from longshort.lab.data.lanes import Lanes

LANES = st.builds(
    lambda lanes, length, more, seed: Lanes(
        np.random.default_rng(seed).integers(0, 256, lanes * length + more, dtype=np.uint8), lanes, length
    ),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 9),
)


@given(LANES, st.integers(0, 10_000))
def test_each_lane_reads_the_repeated_text_from_its_start(lanes, step):
    n, batch = len(lanes.text), lanes.batch(step)
    assert batch.dtype == torch.uint8 and batch.shape == (lanes.lanes, lanes.length + 1)
    for b in range(lanes.lanes):
        position = b * (n // lanes.lanes) + step * lanes.length
        assert batch[b].tolist() == [int(lanes.text[(position + i) % n]) for i in range(lanes.length + 1)]


@given(LANES, st.integers(0, 10_000))
def test_consecutive_batches_are_contiguous(lanes, step):
    assert lanes.batch(step)[:, -1].equal(lanes.batch(step + 1)[:, 0])


@given(st.integers(1, 5), st.integers(1, 8), st.integers(2, 5))
def test_every_byte_is_an_input_and_a_target_once_a_pass(count, length, steps):
    text = np.arange(count * length * steps, dtype=np.uint8)
    lanes = Lanes(text, count, length)
    batches = [lanes.batch(step) for step in range(lanes.stride // length)]
    for part in (slice(None, -1), slice(1, None)):
        assert sorted(torch.cat([batch[:, part] for batch in batches], 1).flatten().tolist()) == text.tolist()


@given(LANES, st.integers(0, 99))
def test_shards_together_are_the_batch(lanes, step):
    for count in (c for c in range(1, lanes.lanes + 1) if lanes.lanes % c == 0):
        shards = [lanes.batch(step, Shard(index, count)) for index in range(count)]
        assert torch.cat(shards).equal(lanes.batch(step))


def test_a_batch_can_be_written_to_and_the_text_stays(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(20)))
    lanes = Lanes(open_text(tmp_path / "text"), 2, 5)  # a read-only map, of which torch would warn
    lanes.batch(0).zero_()
    assert lanes.batch(0)[1].tolist() == list(range(10, 16))


def test_the_shortest_text_is_read_and_a_byte_less_refused():
    text = np.arange(100, dtype=np.uint8)
    assert Lanes(text[:12], 3, 4).batch(5).shape == (3, 5)
    assert Lanes(text[:5], 1, 4).batch(1).tolist() == [[4, 0, 1, 2, 3]]
    with pytest.raises(ValueError, match=r"text of 11 bytes is too short for 3 lanes of 4 bytes, which need 12"):
        Lanes(text[:11], 3, 4)
    with pytest.raises(ValueError, match=r"need 5"):
        Lanes(text[:4], 1, 4)


@pytest.mark.parametrize(
    "text, lanes, length, message",
    [
        (np.zeros(9, np.int64), 1, 1, "1 axes of int64"),
        (np.zeros((9, 9), np.uint8), 1, 1, "2 axes of uint8"),
        (np.zeros(9, np.uint8), 0, 1, "lanes 0"),
        (np.zeros(9, np.uint8), 1, 0, "length 0"),
    ],
)
def test_what_is_no_text_or_no_lane_is_refused(text, lanes, length, message):
    with pytest.raises(ValueError, match=message):
        Lanes(text, lanes, length)


def test_what_cannot_be_read_is_refused():
    lanes = Lanes(np.zeros(90, np.uint8), 3, 4)
    with pytest.raises(ValueError, match="got -1"):
        lanes.batch(-1)
    with pytest.raises(ValueError, match="batch of 3 cannot be divided over 2"):
        lanes.batch(0, Shard(0, 2))
