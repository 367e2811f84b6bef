"""Reformer (Kitaev et al. 2020): tokens are sorted by hashes of their keys, and see their chunk and the one before.

B batch, N tokens, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from longshort.baselines.adapter import Adapter, imported
from longshort.serial import registered


@registered("Reformer")
@dataclass(frozen=True)
class Reformer:
    """By LSHSelfAttention of transformers (tried: 5.22.2), with an output layer of ours. Queries and keys are one
    projection.

    The hashes are drawn anew at every call, in evaluation too. Padding: what stands in it reaches no one, but it
    counts whether there is any: it is sorted last, and the first chunk sees the last. Dropout is on the attention
    weights.
    """

    hashes: int = 2
    chunk: int = 64
    masks_padding: ClassVar[bool] = True
    counts_padding: ClassVar[bool] = True

    def build(
        self, width: int, heads: int, max_length: int, *, dropout: float = 0.0, global_tokens: int = 0
    ) -> ReformerAttention:
        return ReformerAttention(width, heads, max_length, hashes=self.hashes, chunk=self.chunk, dropout=dropout)


class ReformerAttention(Adapter):
    def __init__(
        self, width: int, heads: int, max_length: int, *, hashes: int, chunk: int, dropout: float = 0.0
    ) -> None:
        super().__init__(width, heads, max_length, multiple=2 * chunk, least=2 * chunk + 1)
        config = imported("transformers").ReformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            attention_head_size=width // heads,
            lsh_attn_chunk_length=chunk,
            lsh_attention_probs_dropout_prob=dropout,
            num_hashes=hashes,
            num_buckets=self.buckets(max_length, chunk),
            is_decoder=False,
            use_cache=False,
        )
        package = imported("transformers.models.reformer.modeling_reformer")
        self.attention = package.LSHSelfAttention(config)
        self.out = nn.Linear(width, width)

    def buckets(self, length: int, chunk: int) -> int:
        """Twice as many as there are chunks in the longest sequence, as a power of two, as the package would choose."""
        chunks = self.padded(length) // chunk
        return 2 ** (chunks.bit_length())

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.out(self.attention(x, attention_mask=mask).hidden_states)
