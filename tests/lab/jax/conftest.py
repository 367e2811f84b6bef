"""JAX as its tests want it."""

from jax_settings import float64

__all__ = ["float64"]
