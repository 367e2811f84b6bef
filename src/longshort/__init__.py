"""Long-Short Transformer: attention for long sequences and large images."""

from longshort.geometry import Causal, Segments, Tiles
from longshort.nn import CausalCache, CausalLongShortAttention, DualLN, GridLongShortAttention, LongShortAttention
from longshort.ops import RelativePositions, dynamic_projection, long_short_attention
from longshort.version import VERSION

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
