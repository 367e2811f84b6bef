"""Long-Short Transformer: attention for long sequences and large images.

What stands here is PyTorch's, which is imported when the first of it is asked for: longshort.jax does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longshort.geometry import Causal, Segments, Tiles
from longshort.version import VERSION

if TYPE_CHECKING:
    from longshort.nn import CausalCache, CausalLongShortAttention, DualLN, GridLongShortAttention, LongShortAttention
    from longshort.ops import RelativePositions, dynamic_projection, long_short_attention

__all__ = [
    "Causal",
    "CausalCache",
    "CausalLongShortAttention",
    "DualLN",
    "GridLongShortAttention",
    "LongShortAttention",
    "RelativePositions",
    "Segments",
    "Tiles",
    "dynamic_projection",
    "long_short_attention",
]
__version__ = VERSION
_OPS = ("RelativePositions", "dynamic_projection", "long_short_attention")


def __getattr__(name: str) -> Any:
    if name not in (*__all__, "nn", "ops"):
        raise AttributeError(f"module 'longshort' has no attribute {name!r}")
    try:
        nn, ops = import_module("longshort.nn"), import_module("longshort.ops")
        found = {"nn": nn, "ops": ops}.get(name) or getattr(ops if name in _OPS else nn, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"{name} needs PyTorch: pip install 'longshort[torch]'; for JAX, import longshort.jax"
        raise ImportError(message) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
