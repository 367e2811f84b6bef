"""Tasks of pretrained encoders, on texts as their tokenizers read them: the label of each, and hidden tokens of them.

A model is called as those of transformers are: model(tokens, mask), with numbers of the tokenizer's own.

B texts of a batch, L length, V vocabulary, M hidden tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.data.labelled import Numbers
from longshort.lab.data.tokenised import TokenisedSource
from longshort.lab.evaluate.labels import Batch, scores_of
from longshort.lab.tasks.classify import Classification
from longshort.lab.tasks.masked import Masking
from longshort.serial import registered

MASKED, EXCHANGED = 0.8, 0.1  # of hidden tokens; the others stay as they are


@registered("TextClassification")
@dataclass(frozen=True)
class TextClassification(Classification):
    """As `Classification`; a text that is cut keeps the token that closes it."""

    source: TokenisedSource

    def read(self, items: Any, which: Numbers, multiple: int = 1) -> Batch:
        tokens, real = numbered(self, items, which, multiple)
        return (torch.from_numpy(tokens), torch.from_numpy(real)), torch.from_numpy(items.labels[which])

    def size(self, batch: Batch) -> int:
        return int(batch[0][1].sum())


@registered("MaskedText")
@dataclass(frozen=True)
class MaskedText(Masking):
    """BERT's masked language modelling: of hidden tokens most become the mask, some another token, and some stay.
    Special tokens are never hidden.

    A batch is tokens and mask, [B, L], and where tokens are hidden and which they are, [M]: the scores of all others
    need not be turned into losses.
    """

    source: TokenisedSource

    @cached_property
    def words(self) -> Numbers:
        """All tokens that are not special."""
        return np.setdiff1d(np.arange(self.source.special.vocabulary), self.source.special.every)

    def hide(self, items: Any, which: Numbers, random: np.random.Generator, multiple: int = 1) -> tuple[Tensor, ...]:
        tokens, real = numbered(self, items, which, multiple)
        chosen = random.random(tokens.shape, dtype=np.float32) < self.share
        at = np.flatnonzero(chosen & ~np.isin(tokens, self.source.special.every))
        hidden, fate = tokens.flat[at], random.random(len(at), dtype=np.float32)
        another = random.choice(self.words, len(at))
        tokens.flat[at] = np.select(
            [fate < MASKED, fate < MASKED + EXCHANGED], [self.source.special.mask, another], hidden
        )
        return tuple(torch.from_numpy(array) for array in (tokens, real, at, hidden))

    def size(self, batch: Any) -> int:
        return int(batch[1].sum())

    def restored(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        tokens, real, at, hidden = batch
        scores = scores_of(model(tokens, real)).flatten(0, 1)[at].float()  # [M, V]
        loss = F.cross_entropy(scores, hidden, reduction="sum")
        return loss, hidden.new_full((), len(hidden)), (scores.argmax(1) == hidden).sum()


def numbered(
    task: TextClassification | MaskedText, items: Any, which: Numbers, multiple: int
) -> tuple[Numbers, Numbers]:
    """Numbers of tokens as the tokenizer has them, and 1 where they are real, 0 where they pad: [B, L] both."""
    tokens = items.sequences.padded(which, task.length, multiple, closed=True).astype(np.int64)
    real = (tokens != 0).astype(np.int64)
    return np.where(real == 1, tokens - 1, task.source.special.padding), real
