"""Positions as the small tables in which they enter the operation.

H heads, D head width.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RelativePositions(NamedTuple):
    """Transformer-XL's relative positions, for the causal form. With q the query, k a key, d the distance between them:

    local score  (q + content_bias)·k + (q + position_bias)·local[d],  d = t - j
    row score    q·(k_global + rows[d]),                               d = rows between the query's segment and the row
    """

    content_bias: Tensor  # [H, D], u in the paper
    position_bias: Tensor  # [H, D], v in the paper
    local: Tensor  # [H, span or more, D]
    rows: Tensor  # [H, as many as there are rows or more, D]
