"""Autocast, looked up in one place."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(t: Tensor) -> torch.dtype | None:
    """What autocast computes in where t is; None where it is off, or unknown as for meta tensors."""
    device = t.device.type
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else None
