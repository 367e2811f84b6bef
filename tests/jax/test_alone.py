"""The extra `jax` by itself: what it asks for, and nothing else, in a folder of its own."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROGRAM = """
import importlib.util, sys
import jax.numpy as jnp
from flax import nnx
import longshort, longshort.jax, longshort.lab.jax.train, longshort.lab.jax.bench
from longshort.jax import CausalLongShortAttention, LongShort, SequenceClassifier, SequenceConfig
model = SequenceClassifier(SequenceConfig(LongShort(4, 2), classes=3, width=8, length=32), rngs=nnx.Rngs(0))
assert model(jnp.ones((2, 20), int)).shape == (2, 3)
assert importlib.util.find_spec("torch") is None and "torch" not in sys.modules
try:
    longshort.LongShortAttention
except ImportError as error:
    print(error)
"""


def needed(requirement, found):
    """All distributions that a requirement comes to on this machine, with their extras."""
    name = requirement.name.lower().replace("_", "-")
    known = found.setdefault(name, set())
    new = {"", *requirement.extras} - known
    known |= new
    for text in distribution(name).requires or () if new else ():
        each = Requirement(text)
        if any(each.marker is None or each.marker.evaluate({"extra": extra}) for extra in new):
            needed(each, found)
    return found


def linked(names, folder):
    """A folder of packages that holds these distributions alone."""
    for name in names:
        dist = distribution(name)
        for top in {Path(str(path)).parts[0] for path in dist.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(dist.locate_file(top))).resolve())


@pytest.mark.slow
def test_it_works_where_there_is_no_pytorch(tmp_path):
    names = set(needed(Requirement("longshort[jax]"), {}))
    assert "torch" not in names and {"jax", "flax", "optax"} <= names
    linked(names - {"longshort"}, tmp_path)
    source = Path(__file__).parents[2] / "src"
    paths = f"import sys; sys.path[:0] = {[str(source), str(tmp_path)]}\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", paths + PROGRAM], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "needs PyTorch: pip install 'longshort[torch]'; for JAX, import longshort.jax" in done.stdout


def test_without_jax_the_extra_is_named(tmp_path):
    program = "import sys; sys.modules['jax'] = None\nimport longshort.jax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "longshort.jax needs JAX and Flax: pip install 'longshort[jax]'" in done.stderr
