"""Sampling from a language model, one character at a time, with its caches.

V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longshort.graphs import Replay, Step
from longshort.models.charlm import CharLM

BLOCK = 4_096  # of the prompt that is read at once, where the model has no bound


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the likeliest character; top_k and top_p leave out all but the likeliest ones."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be a number of at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """[V] → [V]"""
        logits = logits.float()
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(), len(logits)).float()
        weights = ((logits - logits.max()).double() / self.temperature).softmax(dim=0).float()
        ordered, order = weights.sort(descending=True, stable=True)
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_k is not None:
            kept[self.top_k :] = False
        if self.top_p is not None:  # the fewest whose sum reaches top_p
            kept &= ordered.cumsum(dim=0) - ordered < self.top_p
        weights = torch.zeros_like(weights).scatter(0, order[kept], ordered[kept])
        return weights / weights.sum()


def generate(
    model: CharLM,
    prompt: bytes,
    count: int,
    sampling: Sampling | None = None,
    *,
    seed: int | None = None,
    block: int | None = None,
) -> Iterator[int]:
    """`count` bytes that go on from the prompt, as they come. With one seed, always the same on one machine.

    The caches hold rows of the last characters, as many as the model's memory. The prompt is read in blocks, of that
    length unless another is given.
    """
    if not isinstance(prompt, bytes):
        raise ValueError(f"prompt must be bytes, got {type(prompt).__name__}: encode it, as UTF-8 say")
    if not prompt:
        raise ValueError("prompt is empty: a model goes on from at least one character")
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"seed must be at least 0 and below 2**63, got {seed}")
    random = torch.Generator()  # on the CPU, so that a seed means the same for every device
    if seed is None:
        random.seed()
    else:
        random.manual_seed(seed)
    return _continued(model, prompt, count, sampling or Sampling(), random, block or model.config.memory or BLOCK)


@torch.no_grad()
def _continued(
    model: CharLM, prompt: bytes, count: int, sampling: Sampling, random: torch.Generator, block: int
) -> Iterator[int]:
    device = next(model.parameters()).device
    model.eval()
    caches: Any = None
    for part in torch.tensor(list(prompt), device=device)[None].split(block, dim=1):
        logits, caches = model(part, caches)
    step: Step = model
    if device.type == "cuda":
        step, caches = Replay(model), model.filled(caches)  # full caches come in few shapes
    for i in range(count):
        chosen = torch.multinomial(sampling.probabilities(logits[0, -1].cpu()), 1, generator=random)
        yield int(chosen)
        if i + 1 < count:
            logits, caches = step(chosen[None].to(device), caches)
