"""How far the words that two documents share tell whether they belong together: what a model of pairs must beat."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from longshort.lab.data.labelled import LabelledPairs, LabelledSplits, Numbers, Sequences

WORD = re.compile(rb"[a-z]{3,}")
Words = Counter[bytes]
Weights = dict[bytes, float]


def word_overlap(splits: LabelledSplits[LabelledPairs], most: int = 4096) -> float:
    """Accuracy on the test pairs of the share of words in common: words in both over words in either.

    Of each document the first `most` bytes count, in lower case, words of three letters or more; a pair belongs
    together above a threshold that is the best on the training pairs.
    """
    return _accuracy(splits, most, lambda words: dict.fromkeys(words, 1.0), _jaccard)


def weighted_overlap(splits: LabelledSplits[LabelledPairs], most: int = 4096) -> float:
    """The same with rare words counting for more: the cosine of the documents' tf-idf weights."""
    seen: Counter[bytes] = Counter()
    in_train = np.unique(splits.train.pairs)
    for i in in_train:
        seen.update(_words(splits.train.documents, int(i), most).keys())

    def weights(words: Words) -> Weights:
        each = {word: times * math.log((1 + len(in_train)) / (1 + seen[word])) for word, times in words.items()}
        norm = math.sqrt(sum(weight * weight for weight in each.values())) or 1.0
        return {word: weight / norm for word, weight in each.items()}

    return _accuracy(splits, most, weights, _dot)


def _jaccard(one: Weights, other: Weights) -> float:
    both = len(one.keys() & other.keys())
    return both / max(len(one) + len(other) - both, 1)


def _dot(one: Weights, other: Weights) -> float:
    return sum(one[word] * other[word] for word in one.keys() & other.keys())


def _words(documents: Sequences, i: int, most: int) -> Words:
    text = (documents[i][:most] - 1).astype(np.uint8).tobytes()
    return Counter(WORD.findall(text.lower()))


def _accuracy(
    splits: LabelledSplits[LabelledPairs],
    most: int,
    weights: Callable[[Words], Weights],
    likeness: Callable[[Weights, Weights], float],
) -> float:
    def scores(part: LabelledPairs) -> NDArray[np.float64]:
        of = {int(i): weights(_words(part.documents, int(i), most)) for i in np.unique(part.pairs)}
        return np.array([likeness(of[i], of[j]) for i, j in part.pairs.tolist()])

    least = _threshold(scores(splits.train), splits.train.labels)
    return float(((scores(splits.test) >= least) == splits.test.labels).mean())


def _threshold(scores: NDArray[np.float64], labels: Numbers) -> float:
    """The score from which on to say 1 so that most labels are right."""
    order = scores.argsort()
    scores, labels = scores[order], labels[order]
    right = np.cumsum(1 - labels) - (1 - labels) + np.cumsum(labels[::-1])[::-1]  # zeros before, ones from here on
    right[1:][scores[1:] == scores[:-1]] = -1  # no threshold lies between equal scores
    return float(scores[right.argmax()])
