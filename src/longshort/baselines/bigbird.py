"""BigBird (Zaheer et al. 2020): a block of tokens sees its neighbours, a few random blocks, the first and the last.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from longshort.baselines.adapter import Adapter, imported
from longshort.ops.precision import autocast_dtype
from longshort.serial import registered


@registered("BigBird")
@dataclass(frozen=True)
class BigBird:
    """By BigBirdBlockSparseAttention of transformers (tried: 5.22.2), with an output layer of ours.

    The window is three blocks. The random blocks come from `seed`, the same in all layers of one spec. In evaluation
    the package takes the first block in place of each, so the adapter keeps it in training mode, where it draws the
    same at every call; it has no dropout, and `dropout` does nothing here. `global_tokens` are ordinary ones of the
    first block, which sees all and is seen by all in any case.
    Padding: what stands in it reaches no one, but its amount counts: the last block, a global one, may be all padding.
    Short sequences are padded to 2 · random_blocks + 6 blocks, the fewest the package takes.
    """

    block: int = 64
    random_blocks: int = 3
    seed: int = 0
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> BigBirdAttention:
        return BigBirdAttention(
            width, heads, max_length, block=self.block, random_blocks=self.random_blocks, seed=self.seed
        )


class BigBirdAttention(Adapter):
    def __init__(
        self, width: int, heads: int, max_length: int, *, block: int, random_blocks: int, seed: int = 0
    ) -> None:
        super().__init__(width, heads, max_length, multiple=block, least=(2 * random_blocks + 6) * block)
        config = imported("transformers").BigBirdConfig(
            hidden_size=width,
            num_attention_heads=heads,
            num_hidden_layers=1,
            max_position_embeddings=self.padded(max_length),
            block_size=block,
            num_random_blocks=random_blocks,
        )
        package = imported("transformers.models.big_bird.modeling_big_bird")
        self.attention = package.BigBirdBlockSparseAttention(config, seed=seed)
        self.masks = package.BigBirdModel.create_masks_for_block_sparse_attn
        self.out = nn.Linear(width, width)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.attention.train()
        return self

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        dtype = autocast_dtype(x) or x.dtype
        real = torch.ones(x.shape[:2], dtype=dtype, device=x.device) if mask is None else mask.to(dtype)
        blocked, band, rows, columns = self.masks(real, self.multiple)
        state = np.random.get_state()  # the package seeds numpy for everyone
        y, _ = self.attention(
            x,
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )
        np.random.set_state(state)
        return self.out(y)
