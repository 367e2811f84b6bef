"""The measures of the robustness sets, on cases that can be worked out by hand."""

import numpy as np
import pytest

from longshort.lab.data.benchmarks import CORRUPTIONS
from longshort.lab.evaluate.measures import (
    ALEXNET,
    corruption_errors,
    mean_corruption_error,
    right,
    right_among,
    right_of_many,
    right_of_nine,
)

SCORES = np.array([[5, 1, 2, 3], [0, 9, 8, 7], [1, 2, 3, 4], [4, 3, 2, 1]], np.float32)  # 0, 1, 3 and 0 are highest


def test_the_highest_score_counts():
    assert right(SCORES, np.array([0, 2, 3, 1])).tolist() == [True, False, True, False]


def test_among_some_classes_others_cannot_be_chosen():
    """Of classes 1 and 3 alone, 3, 1, 3 and 1 are the highest."""
    assert right_among(SCORES, np.array([3, 1, 1, 1]), np.array([1, 3])).tolist() == [True, True, False, True]


def test_any_of_many_labels_counts_and_pictures_without_one_do_not():
    labels = np.fromiter([[0, 2], [2], [], [3, 0]], dtype=object, count=4)
    assert right_of_many(SCORES, labels).tolist() == [True, False, True]
    assert right_of_many(SCORES[:1], [[]]).tolist() == []


def test_of_nine_the_class_it_belongs_to_counts():
    nine = np.array([4, -1, 2, 4])  # class 1 belongs to none
    assert right_of_nine(SCORES, np.array([4, 4, 4, 2]), nine).tolist() == [True, False, True, False]


def test_corruption_errors_are_relative_to_alexnets():
    errors = {"snow": [0.1, 0.2, 0.3, 0.4, 0.5], "fog": [0.4] * 5}
    relative = corruption_errors(errors)
    assert relative["snow"] == pytest.approx(0.3 / 0.866816) and relative["fog"] == pytest.approx(0.4 / 0.819324)
    assert mean_corruption_error(errors) is None


def test_alexnet_has_100_per_cent():
    errors = {name: [share] * 5 for name, share in ALEXNET.items()}
    assert mean_corruption_error(errors) == pytest.approx(1.0)
    halves = {name: [share / 2] * 5 if name == "fog" else [share] * 5 for name, share in ALEXNET.items()}
    assert mean_corruption_error(halves) == pytest.approx(1 - 0.5 / 15)
    assert mean_corruption_error({**errors, "fog": [0.1] * 4}) is None
    assert set(ALEXNET) == set(CORRUPTIONS) and len(CORRUPTIONS) == 15
    assert np.mean(list(ALEXNET.values())) == pytest.approx(0.789, abs=5e-4)  # as its own mean is known
