"""A model in JAX with its optimizer and the functions compiled for them; its state as the files of a checkpoint.

B sequences of a batch, L length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from longshort.jax.sequence import SequenceClassifier, SequenceConfig
from longshort.jax.specs import Full, LongShort
from longshort.jax.weights import from_torch, to_torch
from longshort.lab.data.labelled import Labelled
from longshort.lab.runs.checkpoints import WEIGHTS, Checkpoints, write
from longshort.lab.runs.errors import CheckpointError
from longshort.lab.runs.optimizers import AdamW
from longshort.lab.runs.run import Run
from longshort.serial import as_json

CONFIG, STATE = "config.json", "state.safetensors"
Arrays = dict[str, NDArray[Any]]


class Trainer:
    """Weights and optimizer state change from step to step; all else is fixed by the run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        model = SequenceClassifier(run.model, rngs=nnx.Rngs(params=run.seed, dropout=run.seed))
        parts: Any = nnx.split(model, nnx.Param, ...)
        self.graph, self.weights, self.rest = parts
        self.state = self.optimizer(0.0).init(self.weights)
        self.compiled_update = jax.jit(self.update, donate_argnums=(0, 1))
        self.compiled_count = jax.jit(self.count_correct)

    def optimizer(self, rate: float | Array) -> optax.GradientTransformation:
        spec = self.run.optimizer
        assert isinstance(spec, AdamW)  # see check_run
        return optax.adamw(
            rate, b1=spec.betas[0], b2=spec.betas[1], eps=spec.eps, weight_decay=spec.weight_decay, mask=decaying
        )

    def model(self, weights: Any) -> SequenceClassifier:
        merged: SequenceClassifier = nnx.merge(self.graph, weights, self.rest, copy=True)
        return merged

    def update(
        self, weights: Any, state: Any, rate: Array, number: Array, tokens: Array, labels: Array
    ) -> tuple[Any, Any, Array]:
        """New weights, new optimizer state, and the loss. Dropout depends on the seed and the number alone."""

        def loss(weights: Any) -> Array:
            model = self.model(weights)
            nnx.reseed(model, dropout=jax.random.fold_in(jax.random.key(self.run.seed), number))
            scores = model(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        updates, state = self.optimizer(rate).update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, value

    def learn(self, step: int, rate: float, tokens: Any, labels: Any) -> Array:
        """Update number `step`, from 0, at this share of the peak rate; its loss."""
        rate *= self.run.optimizer.lr
        self.weights, self.state, loss = self.compiled_update(self.weights, self.state, rate, step + 1, tokens, labels)
        return loss

    def count_correct(self, weights: Any, tokens: Array, labels: Array) -> Array:
        model = self.model(weights)
        model.eval()
        return (model(tokens).argmax(1) == labels).sum()

    def accuracy(self, items: Labelled) -> float:
        batches = self.run.task.evaluation_batches(items)
        counts = [self.compiled_count(self.weights, tokens, labels) for tokens, labels in batches]
        return sum(int(count) for count in counts) / len(items)

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(self.weights))

    @property
    def arrays(self) -> Arrays:
        """Weights and optimizer state, by their place in the tree."""
        return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves((self.weights, self.state)))}

    def restore(self, arrays: Arrays) -> None:
        """Put `arrays` back. A single number may have a shape of (1,): some versions of safetensors write it so."""
        leaves, tree = jax.tree.flatten((self.weights, self.state))
        if len(arrays) != len(leaves):
            raise ValueError(f"there are {len(arrays)} arrays, and the weights and optimizer have {len(leaves)}")
        for i, leaf in enumerate(leaves):
            if str(i) not in arrays:
                raise ValueError(f"array {i} is not among them")
            array = arrays[str(i)]
            if array.shape != leaf.shape and not array.size == leaf.size == 1:
                raise ValueError(f"array {i} is {array.shape}, and the weights or optimizer have {leaf.shape}")
            leaves[i] = jnp.asarray(array.reshape(leaf.shape), leaf.dtype)
        self.weights, self.state = jax.tree.unflatten(tree, leaves)

    def load_weights(self, weights: Arrays) -> None:
        """By PyTorch's names."""
        self.weights = nnx.state(from_torch(weights, self.model(self.weights)), nnx.Param)

    @property
    def files(self) -> dict[str, bytes]:
        """A checkpoint's files: a model that PyTorch reads where it has this attention, and the state to go on from."""
        return {**model_files(self.run.model, to_torch(self.model(self.weights))), STATE: save(self.arrays)}


def decaying(weights: Any) -> Any:
    """Which weights decay: those of linear layers, and no biases, norms or embeddings."""
    return jax.tree.map_with_path(lambda path, _: "kernel" in jax.tree_util.keystr(path), weights)


def model_files(config: SequenceConfig, weights: Arrays) -> dict[str, bytes]:
    """weights: by PyTorch's names."""
    text = json.dumps(config_as_json(config), indent=2)
    return {WEIGHTS: save(weights, metadata={"format": "pt"}), CONFIG: text.encode()}


def config_as_json(config: SequenceConfig) -> dict[str, Any]:
    """By the names of PyTorch's classes where these have the same weights, else by those of JAX's."""
    spec = config.attention
    if not isinstance(spec, LongShort | Full):
        return dict(as_json(config))
    attention = {"type": type(spec).__name__, **(asdict(spec) if isinstance(spec, LongShort) else {})}
    sizes = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("attention", "dtype")}
    return {"type": "SequenceConfig", "attention": attention, **sizes}


def write_checkpoint(to: Checkpoints, step: int, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
    try:
        with to.guarded(step):
            folder = to.begin(step)
            for name, content in files.items():
                write(folder / name, content)
            to.finish(step, {**facts, "processes": 1})
    except CheckpointError:
        to.abandon(step)
        raise


def read_arrays(path: Path) -> Arrays:
    """Of a checkpoint's file."""
    try:
        arrays: Arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    return arrays


def device() -> str:
    return str(jax.devices()[0].device_kind)
