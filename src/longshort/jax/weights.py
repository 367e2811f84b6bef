"""Weights to and from PyTorch, without importing it: its modules and tensors are asked for numpy arrays.

A module of Flax has the names of the PyTorch one, but for what both frameworks call by names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
Model = TypeVar("Model", bound=nnx.Module)


def from_torch(source: Any, model: Model) -> Model:
    """The weights of a PyTorch module, or of its state dict, in `model`, which has the same layers; returns `model`."""
    if any(getattr(part, "rotary", None) for part in getattr(source, "modules", tuple)()):
        raise ValueError("the weights are of attention with rotary positions, which there are none of here")
    state: Mapping[str, Any] = source.state_dict() if hasattr(source, "state_dict") else source
    ours = parameters(model)
    missing, unknown = sorted(set(ours) - set(state)), sorted(set(state) - set(ours))
    if missing or unknown:
        raise ValueError(
            f"weights do not fit the model: {', '.join(missing) or 'none'} missing, {', '.join(unknown) or 'none'} "
            "of no place in it"
        )
    read = {name: array(state[name], turned) for name, (_, turned) in ours.items()}
    for name, (variable, _) in ours.items():
        if read[name].shape != variable.shape:
            raise ValueError(f"{name} is {read[name].shape} there and {variable.shape} here")
    for name, (variable, _) in ours.items():  # once all are known to fit
        variable[...] = jnp.array(read[name], variable.dtype)  # a copy: PyTorch changes its weights in place
    return model


def to_torch(model: nnx.Module, module: Any = None) -> dict[str, np.ndarray[Any, Any]]:
    """The weights by PyTorch's names, in its orientation; copied into `module`, if one is given.

    They lie in memory as they are read: safetensors writes what is only turned in its old order.
    """
    made = {
        name: np.array(np.asarray(variable[...]).T if turned else variable[...], dtype=np.float32, order="C")
        for name, (variable, turned) in parameters(model).items()
    }
    if module is not None:
        state = module.state_dict()
        tensors = {name: state[name].new_tensor(value) if name in state else value for name, value in made.items()}
        module.load_state_dict(tensors)
    return made


def parameters(model: nnx.Module) -> dict[str, tuple[nnx.Param[Any], bool]]:
    """By the name in PyTorch: the parameter here, and whether it is turned: kernels are [in, out], weights not."""
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *place, last = (str(part) for part in path if part != "layers")  # which is Sequential's own
        found[".".join([*place, NAMES.get(last, last)])] = (variable, last == "kernel")
    return found


def array(value: Any, turned: bool) -> np.ndarray[Any, Any]:
    """Of a tensor of any precision and place, or of anything numpy reads."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    made = np.asarray(value)
    return made.T if turned else made
