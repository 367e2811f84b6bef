"""Punctuation put into texts or taken out of them, which seldom changes what they say: the test sets of Table 2.

S sequences, T tokens of all together. Tokens are bytes + 1.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from longshort.lab.data.labelled import Labelled, LabelledPairs, Sequences

PUNCTUATION = np.frombuffer(string.punctuation.encode(), np.uint8).astype(np.int16) + 1


def insert_punctuation(sequences: Sequences, seed: int = 0, count: int = 10) -> Sequences:
    """`count` random marks at as many random places of each sequence, its two ends among them."""
    random = np.random.default_rng(seed)
    marks = random.choice(PUNCTUATION, (len(sequences), count))  # [S, count]
    places = random.integers(0, sequences.lengths[:, None] + 1, marks.shape)  # before which token of its sequence
    places += sequences.starts[:-1, None]
    # Where a sequence's end is the next one's start, marks stay in the order given, and so with their sequence.
    tokens = np.insert(sequences.tokens, places.ravel(), marks.ravel())
    return Sequences(tokens, sequences.starts + count * np.arange(len(sequences.starts)))


def delete_punctuation(sequences: Sequences) -> Sequences:
    """All marks deleted; a sequence of nothing else is empty then."""
    kept = ~np.isin(sequences.tokens, PUNCTUATION)  # [T]
    before = np.concatenate([[0], kept.cumsum()])  # [T + 1]: how many are kept of the tokens before each
    return Sequences(sequences.tokens[kept], before[sequences.starts])


def perturbed_texts() -> dict[str, Callable[[Labelled], Labelled]]:
    """The test sets of Table 2, by name."""
    return {name: partial(_with_sequences, change) for name, change in CHANGES.items()}


def perturbed_pairs() -> dict[str, Callable[[LabelledPairs], LabelledPairs]]:
    return {name: partial(_with_documents, change) for name, change in CHANGES.items()}


def _with_sequences(change: Change, items: Labelled) -> Labelled:
    return replace(items, sequences=change(items.sequences))


def _with_documents(change: Change, items: LabelledPairs) -> LabelledPairs:
    return replace(items, documents=change(items.documents))


Change = Callable[[Sequences], Sequences]
CHANGES: dict[str, Change] = {"insertion": insert_punctuation, "deletion": delete_punctuation}
