"""ImageNet-C's corruptions of any pictures, made on the way by the package imagecorruptions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.lab.data.images import Bytes, Middle


@lru_cache
def package() -> Any:
    """The package, which was written for older versions of numpy and scikit-image."""
    try:
        import imagecorruptions
        from imagecorruptions import corruptions
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed; pip install 'longshort[corruptions]'") from error
    corruptions.np = _OlderNumpy()
    smooth = corruptions.gaussian

    def gaussian(image: Any, *args: Any, multichannel: bool = False, **keywords: Any) -> Any:
        return smooth(image, *args, channel_axis=-1 if multichannel else None, **keywords)

    corruptions.gaussian = gaussian
    return imagecorruptions


class _OlderNumpy:
    """With the names that numpy has no more, for one module alone."""

    float_ = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@dataclass(frozen=True)
class Corrupted:
    """The middle of a picture, corrupted: the same picture always in the same way."""

    name: str
    severity: int
    middle: Middle

    @property
    def side(self) -> int:
        return self.middle.side

    def __call__(self, image: Any) -> Bytes:
        whole = self.middle(image)
        state = np.random.get_state()
        np.random.seed(int(whole.astype(np.uint32).sum()) % 2**32)  # where the package takes its numbers from
        try:
            colours = np.ascontiguousarray(whole.transpose(1, 2, 0))
            made: NDArray[Any] = package().corrupt(colours, corruption_name=self.name, severity=self.severity)
        finally:
            np.random.set_state(state)
        return np.ascontiguousarray(made.clip(0, 255).astype(np.uint8).transpose(2, 0, 1))
