"""JAX on four devices of a processor, in float64 where a test asks for it: the conftest of rooms that use JAX."""

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_disable_most_optimizations", True)  # tests are compiled longer than they run


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield np.float64
