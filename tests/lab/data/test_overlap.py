"""Word overlap is right where shared words tell the label, and at chance where they do not."""

import numpy as np
import pytest

from longshort.lab.data.labelled import LabelledPairs, LabelledSplits, Sequences
from longshort.lab.data.overlap import weighted_overlap, word_overlap

WORDS = [f"{a}{b}{c}" for a in "kmnprst" for b in "aeiou" for c in "kmnprst"]


def splits_of(texts, parts):
    """From texts and three lists of (label, text, text)."""
    documents = Sequences.of_bytes(text.encode() for text in texts)
    made = (
        LabelledPairs(documents, np.array([pair for _, *pair in part]), np.array([label for label, *_ in part]))
        for part in parts
    )
    return LabelledSplits(*made)


@pytest.fixture
def by_subject():
    """Documents of two subjects with words of their own; a pair belongs together if the subject is one."""
    random = np.random.default_rng(0)
    subjects = random.integers(2, size=60)
    texts = [" ".join(random.choice(WORDS[s * 100 : s * 100 + 120], 60)) for s in subjects]
    pairs = random.integers(60, size=(900, 2))
    each = [(int(subjects[a] == subjects[b]), a, b) for a, b in pairs.tolist()]
    return splits_of(texts, (each[:600], each[600:700], each[700:]))


@pytest.mark.parametrize("overlap", [word_overlap, weighted_overlap])
def test_shared_words_tell_the_subject(by_subject, overlap):
    assert overlap(by_subject) > 0.95


@pytest.mark.parametrize("overlap", [word_overlap, weighted_overlap])
def test_only_what_a_model_reads_counts(by_subject, overlap):
    assert overlap(by_subject, most=2) < 0.7  # no word is that short


@pytest.mark.parametrize("overlap", [word_overlap, weighted_overlap])
def test_the_test_pairs_do_not_choose_the_threshold(overlap):
    texts = ["one two six", "ONE two six", "ten red cat"]
    pairs = [(1, 0, 1), (0, 0, 2)]
    assert overlap(splits_of(texts, (pairs, pairs, pairs))) == 1.0
    turned = [(1 - label, a, b) for label, a, b in pairs]
    assert overlap(splits_of(texts, (pairs, turned, turned))) == 0.0


def test_rare_words_count_for_more():
    """All pairs have one word of seven in common; in those that belong together no other pair has it."""
    fillers = iter(WORDS)
    shared = ["ant", "bee", "cow", "dog", "elk", "fox", *["the"] * 6]
    texts = [f"{word} {next(fillers)} {next(fillers)} {next(fillers)}" for word in shared for _ in range(2)]
    pairs = [(int(word != "the"), 2 * i, 2 * i + 1) for i, word in enumerate(shared)]
    splits = splits_of(texts, [pairs] * 3)
    assert word_overlap(splits) == 0.5
    assert weighted_overlap(splits) == 1.0
