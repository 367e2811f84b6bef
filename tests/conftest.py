"""Memory that nobody has written reads as NaN in all tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty and its kin come filled with NaN, so that a read of what was never written shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
