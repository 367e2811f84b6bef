"""Shards divide a batch: disjoint, equal, and together the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.lab.data import Shard


@given(st.integers(1, 7), st.integers(0, 5))
def test_shards_together_are_the_whole_in_order(count, size):
    items = list(range(count * size))
    assert [item for index in range(count) for item in items[Shard(index, count).part(len(items))]] == items


def test_one_shard_is_the_whole():
    assert list(range(7))[Shard().part(7)] == list(range(7))


def test_a_batch_that_cannot_be_divided_is_refused_with_numbers():
    with pytest.raises(ValueError, match="batch of 7 cannot be divided over 2 processes × gradient accum"):
        Shard(0, 2).part(7)


@pytest.mark.parametrize("index, count", [(0, 0), (-1, 2), (2, 2), (0, -1)])
def test_a_shard_outside_its_count_is_refused(index, count):
    with pytest.raises(ValueError, match=f"got {index if count > 0 else count}"):
        Shard(index, count)
