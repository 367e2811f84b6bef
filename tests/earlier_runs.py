"""Runs and saved models as earlier versions left them, when files named classes by their modules.

The archive has data, runs of two steps of every kind, saved models, and what going on with each gave (expected.json).
Paths in it are relative to its folder.
"""

import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent / "fixtures" / "earlier.tar.xz"


def earlier(folder):
    """Unpack it; the folder that paths are relative to."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "earlier"
