"""Insertion adds ten marks to each sequence, deletion takes all of them out, and neither changes anything else."""

import string

import numpy as np
import pytest

from longshort.lab.data.labelled import Sequences
from longshort.lab.data.perturb import delete_punctuation, insert_punctuation

MARKS = set(string.punctuation.encode())


def texts_of(sequences):
    return [(sequences[i] - 1).astype(np.uint8).tobytes() for i in range(len(sequences))]


def random_texts(count, alphabet, seed=0):
    random = np.random.default_rng(seed)
    return [random.choice(alphabet, n).astype(np.uint8).tobytes() for n in random.integers(0, 50, count)]


@pytest.fixture
def plain():
    """Of all bytes that are no marks; some texts are empty."""
    texts = random_texts(200, [byte for byte in range(256) if byte not in MARKS])
    assert b"" in texts
    return texts


@pytest.fixture
def mixed():
    return random_texts(200, np.arange(256))


@pytest.mark.parametrize("count", [0, 1, 10])
def test_insertion_adds_marks_to_each_sequence_and_nothing_else(plain, count):
    inserted = texts_of(insert_punctuation(Sequences.of_bytes(plain), count=count))
    for before, after in zip(plain, inserted, strict=True):
        assert sum(byte in MARKS for byte in after) == count == len(after) - len(before)


def test_deletion_undoes_insertion_in_texts_without_marks(plain):
    sequences = Sequences.of_bytes(plain)
    assert texts_of(delete_punctuation(insert_punctuation(sequences))) == plain
    assert texts_of(delete_punctuation(sequences)) == plain


def test_insertion_leaves_the_marks_that_are_there(mixed):
    for before, after in zip(mixed, texts_of(insert_punctuation(Sequences.of_bytes(mixed))), strict=True):
        rest = iter(after)
        assert all(byte in rest for byte in before)  # in their order
        assert len(after) == len(before) + 10


def test_deletion_takes_all_marks_and_nothing_else(mixed):
    deleted = texts_of(delete_punctuation(Sequences.of_bytes(mixed)))
    assert deleted == [bytes(byte for byte in text if byte not in MARKS) for text in mixed]


def test_a_text_of_marks_alone_becomes_empty():
    assert texts_of(delete_punctuation(Sequences.of_bytes([b"?!", b"a.", b"..."]))) == [b"", b"a", b""]


def test_insertion_is_chance_that_can_be_repeated(plain):
    sequences = Sequences.of_bytes(plain)
    one, again, other = (texts_of(insert_punctuation(sequences, seed)) for seed in (1, 1, 2))
    assert one == again != other


def test_all_marks_and_all_places_come_up():
    inserted = texts_of(insert_punctuation(Sequences.of_bytes([b"abc"] * 500), count=1))
    assert {text.translate(None, b"abc") for text in inserted} == {bytes([mark]) for mark in MARKS}
    assert {place for text in inserted for place in range(4) if text[place] in MARKS} == {0, 1, 2, 3}


def test_no_sequences_are_none_afterwards():
    empty = Sequences.of_bytes([])
    assert len(insert_punctuation(empty)) == len(delete_punctuation(empty)) == 0


def test_types_and_the_given_sequences_stay(mixed):
    sequences = Sequences.of_bytes(mixed)
    before = sequences.fingerprint()
    for made in (insert_punctuation(sequences), delete_punctuation(sequences)):
        assert made.tokens.dtype == np.int16 and made.starts.dtype == np.int64
    assert sequences.fingerprint() == before
