"""Training and measuring in JAX. Imports no PyTorch."""
