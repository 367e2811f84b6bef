"""How far a model of ImageNet can be trusted: the measures of ReaL, A, R, C and ImageNet-9.

I pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.lab.data.labelled import Numbers

Scores = NDArray[np.float32]  # [I, K]
Measure = Callable[[Any, Any], Any]  # scores and labels → whether each is right, without what does not count
ALEXNET = {  # its share of errors, the mean over the five severities: what corruption errors are relative to
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


def right(scores: Scores, labels: Numbers) -> NDArray[np.bool_]:
    """Whether the highest score is that of the label."""
    return scores.argmax(1) == labels


def right_among(scores: Scores, labels: Numbers, classes: Numbers) -> NDArray[np.bool_]:
    """The same, where some classes alone may be chosen: A and R have 200 of ImageNet's."""
    return classes[scores[:, classes].argmax(1)] == labels


def right_of_many(scores: Scores, labels: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """ReaL: whether the highest score is that of any label. Pictures that have none are not counted."""
    pairs = zip(scores.argmax(1).tolist(), labels, strict=True)
    return np.array([chosen in fitting for chosen, fitting in pairs if fitting], np.bool_)


def right_of_nine(scores: Scores, labels: Numbers, nine: Numbers) -> NDArray[np.bool_]:
    """ImageNet-9: whether the class of the highest score is one of those that the label, of nine, is made of."""
    return nine[scores.argmax(1)] == labels


def corruption_errors(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By corruption, from the share of errors at each severity: their mean, relative to AlexNet's."""
    return {name: float(np.mean(each)) / ALEXNET[name] for name, each in errors.items()}


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float | None:
    """mCE, of all fifteen corruptions at all five severities; of fewer there is none."""
    if set(errors) != set(ALEXNET) or any(len(each) != 5 for each in errors.values()):
        return None
    return float(np.mean(list(corruption_errors(errors).values())))
