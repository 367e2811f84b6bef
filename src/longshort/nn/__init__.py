"""Modules with state: the three attentions, DualLN, positions and the causal cache."""

from longshort.nn.attention import GridLongShortAttention, LongShortAttention
from longshort.nn.cache import CausalCache
from longshort.nn.causal import CausalLongShortAttention
from longshort.nn.norm import DualLN

__all__ = ["CausalCache", "CausalLongShortAttention", "DualLN", "GridLongShortAttention", "LongShortAttention"]
