"""What importing the library brings along, and what it must not."""

import subprocess
import sys

import pytest

LABORATORY = ("longshort.lab", "rich", "tyro", "matplotlib", "accelerate")
LIBRARY = "import longshort\nfor name in longshort.__all__: getattr(longshort, name)\n"
MODELS = "import longshort.models, longshort.generate, longshort.graphs, longshort.serial, longshort.checksums\n"


def imported(program):
    """Which modules a new process has then."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_package_alone_brings_no_framework():
    assert not {"torch", "jax", "numpy", *LABORATORY} & imported("import longshort")


@pytest.mark.parametrize("program", [LIBRARY, MODELS], ids=["the public names", "the models"])
def test_the_library_brings_no_laboratory(program):
    modules = imported(program)
    assert "torch" in modules and not {*LABORATORY} & modules
