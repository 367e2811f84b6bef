"""Long-short attention in JAX: the operation, modules of Flax (NNX), sequence models, weights to and from PyTorch.

Needs no PyTorch: pip install 'longshort[jax]'.
"""

from longshort.geometry import Causal, Segments, Tiles

try:
    from longshort.jax.attention import (
        CausalCache,
        CausalLongShortAttention,
        DualLN,
        GridLongShortAttention,
        LongShortAttention,
    )
    from longshort.jax.ops import RelativePositions, dynamic_projection, long_short_attention
    from longshort.jax.sequence import PairClassifier, SequenceClassifier, SequenceConfig
    from longshort.jax.specs import AttentionSpec, Full, Linformer, Local, LongShort, Performer, Slot
    from longshort.jax.weights import from_torch, to_torch
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("jax", "flax", "einops"):
        raise
    raise ImportError("longshort.jax needs JAX and Flax: pip install 'longshort[jax]'") from error

__all__ = [
    "AttentionSpec",
    "Causal",
    "CausalCache",
    "CausalLongShortAttention",
    "DualLN",
    "Full",
    "GridLongShortAttention",
    "Linformer",
    "Local",
    "LongShort",
    "LongShortAttention",
    "PairClassifier",
    "Performer",
    "RelativePositions",
    "Segments",
    "SequenceClassifier",
    "SequenceConfig",
    "Slot",
    "Tiles",
    "dynamic_projection",
    "from_torch",
    "long_short_attention",
    "to_torch",
]
