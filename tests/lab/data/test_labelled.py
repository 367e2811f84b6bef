"""Labelled sequences: each keeps its own tokens, batches are padded with 0, and orders depend on the step alone."""

import numpy as np
import pytest

from longshort.lab.data.epochs import Epochs
from longshort.lab.data.labelled import Labelled, LabelledPairs, LabelledSplits, Sequences, digest
from longshort.lab.data.shard import Shard

THREE = [[3, 1, 2], [5], [7, 8, 9, 4, 6]]


def test_sequences_come_back_one_by_one():
    made = Sequences.of(THREE)
    assert [made[i].tolist() for i in range(len(made))] == THREE
    assert made.lengths.tolist() == [3, 1, 5]
    assert len(Sequences.of([])) == 0


def test_bytes_are_their_number_plus_one():
    made = Sequences.of_bytes([b"a\x00", b"", b"\xff"])
    assert [made[i].tolist() for i in range(3)] == [[98, 1], [], [256]]


@pytest.mark.parametrize(
    ("items", "most", "multiple", "expected"),
    [
        ([0, 1], 10, 1, [[3, 1, 2], [5, 0, 0]]),
        ([2, 0], 4, 1, [[7, 8, 9, 4], [3, 1, 2, 0]]),
        ([1], 10, 4, [[5, 0, 0, 0]]),
        ([1], 6, 6, [[5, 0, 0, 0, 0, 0]]),
        ([2], 3, 4, [[7, 8, 9]]),
    ],
)
def test_a_batch_is_cut_and_padded(items, most, multiple, expected):
    assert Sequences.of(THREE).padded(items, most, multiple).tolist() == expected


def test_what_is_cut_may_keep_its_end():
    made = Sequences.of(THREE)
    assert made.padded([2, 0], 3, closed=True).tolist() == [[7, 8, 6], [3, 1, 2]]
    assert made.padded([2, 1], 5, closed=True).tolist() == [[7, 8, 9, 4, 6], [5, 0, 0, 0, 0]]
    assert made.padded([1], 3, 3, closed=True).tolist() == [[5, 0, 0]]


def test_tokens_of_a_large_vocabulary_stay_whole():
    made = Sequences.of([[50_265, 1], [], [40_000]], np.int32)
    items = Labelled(made, np.arange(3))
    for each in (made.padded([0, 2], 9), items.take([0, 2]).sequences.padded([0, 1], 9)):
        assert each.dtype == np.int32 and each.tolist() == [[50_265, 1], [40_000, 0]]
    assert Sequences.of(THREE).padded([0], 9).dtype == Sequences.of([]).tokens.dtype == np.int16


def test_an_empty_sequence_is_one_token_of_padding():
    assert Sequences.of_bytes([b""]).padded([0], 5).tolist() == [[0]]


def test_some_are_taken_with_their_labels():
    taken = Labelled(Sequences.of(THREE), np.array([0, 1, 2])).take([2, 0])
    assert [taken.sequences[i].tolist() for i in range(2)] == [THREE[2], THREE[0]]
    assert taken.labels.tolist() == [2, 0]


def test_labels_and_sequences_must_be_as_many():
    with pytest.raises(ValueError, match="3 sequences have 2 labels"):
        Labelled(Sequences.of(THREE), np.array([0, 1]))
    with pytest.raises(ValueError, match="have 1 labels"):
        LabelledPairs(Sequences.of(THREE), np.zeros((2, 2), np.int64), np.array([0]))


def test_a_pair_is_as_long_as_its_longer_document():
    pairs = LabelledPairs(Sequences.of(THREE), np.array([[0, 1], [2, 0]]), np.array([0, 1]))
    assert pairs.lengths.tolist() == [3, 5]


@pytest.mark.parametrize("part", ["train", "dev", "test"])
@pytest.mark.parametrize(
    "other",
    [
        Labelled(Sequences.of([[3, 1, 2], [5], [7, 8, 9, 4, 1]]), np.arange(3)),
        Labelled(Sequences.of([[3, 1], [2, 5], [7, 8, 9, 4, 6]]), np.arange(3)),
        Labelled(Sequences.of(THREE), np.array([0, 2, 1])),
    ],
    ids=["token", "border", "label"],
)
def test_the_fingerprint_knows_every_change(part, other):
    same = Labelled(Sequences.of(THREE), np.arange(3))
    parts = dict(train=same, dev=same, test=same)
    assert LabelledSplits(**parts).fingerprint() != LabelledSplits(**{**parts, part: other}).fingerprint()


def test_the_fingerprint_of_small_vocabularies_is_what_it_was():
    """By it a run knows its data again."""
    made = Labelled(Sequences.of(THREE), np.arange(3))
    assert made.fingerprint() == "6bfdef2ae1f7ae16986c09345fbf6266d88ff078810d39c0f11ef89bdb0caec8"


def test_a_digest_knows_shape_and_type_but_no_machine():
    a = np.arange(6, dtype=np.int16)
    assert digest(a) == digest(a.astype(">i2"))
    assert len({digest(a), digest(a.reshape(2, 3)), digest(a.astype(np.int32)), digest(a, a)}) == 4


def test_an_epoch_has_every_item_once_in_an_order_of_its_own():
    epochs = Epochs(items=10, batch=3, seed=1)
    assert epochs.steps == 3
    first, second = (np.concatenate([epochs.at(step) for step in steps]) for steps in (range(3), range(3, 6)))
    assert len(set(first)) == len(set(second)) == 9
    assert first.tolist() != second.tolist()
    assert epochs.at(4).tolist() == Epochs(10, 3, 1).at(4).tolist() != Epochs(10, 3, 2).at(4).tolist()


def test_shards_make_the_batch():
    epochs = Epochs(items=10, batch=4)
    parts = [epochs.at(1, Shard(i, 2)) for i in range(2)]
    assert np.concatenate(parts).tolist() == epochs.at(1).tolist()


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(ValueError, match="a batch of 5 cannot be taken from 4 examples"):
        Epochs(items=4, batch=5)
