"""Splits are the text in three parts, in order, nothing lost and nothing twice."""

import numpy as np
import pytest

from longshort.lab.data import split, split_text, splits

TEXT = np.arange(100, dtype=np.uint8)


@pytest.mark.parametrize("parts", [split(TEXT, 5, 7), split(TEXT, 0, 0), split_text(TEXT), split_text(TEXT, 0.3, 0.0)])
def test_the_parts_together_are_the_text(parts):
    assert np.concatenate([parts.train, parts.dev, parts.test]).tolist() == TEXT.tolist()


def test_the_last_bytes_are_test_and_those_before_dev():
    parts = split(TEXT, dev=5, test=7)
    assert (len(parts.train), parts.dev.tolist(), parts.test[0]) == (88, [88, 89, 90, 91, 92], 93)


def test_shares_are_of_the_whole_text():
    parts = split_text(TEXT, dev_share=0.05, test_share=0.1)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == (85, 5, 10)


def test_parts_are_views_of_the_text():
    assert all(np.shares_memory(part, TEXT) for part in vars(split(TEXT, 5, 5)).values())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: split(TEXT, 50, 50), "text of 100 bytes has nothing to train on after 50 dev and 50 test"),
        (lambda: split(TEXT, -1, 5), "dev -1"),
        (lambda: split_text(TEXT, 1.0), "got 1.0"),
        (lambda: split_text(TEXT, 0.6, 0.6), "nothing to train on"),
        (lambda: split_text(TEXT[:10]), "text of 10 bytes is too short for a dev share of 0.05"),
    ],
)
def test_an_impossible_split_is_refused_with_numbers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("size", [100, 10 * 256 + 3])
def test_a_fingerprint_is_of_the_text_and_of_its_parts(size, monkeypatch):
    monkeypatch.setattr(splits, "PIECE", 8)  # the longer text is too long for all its pieces
    text = np.arange(size, dtype=np.uint8)
    ours = split(text, 5, 7).fingerprint()
    assert ours == split(text.copy(), 5, 7).fingerprint() != split(text, 7, 5).fingerprint()
    for i in (0, size - 13, size - 12, size - 8, size - 1):  # the edges of its parts
        other = text.copy()
        other[i] += 1
        assert split(other, 5, 7).fingerprint() != ours
    assert split(np.append(text, text[:1]), 5, 7).fingerprint() != ours
