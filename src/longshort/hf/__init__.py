"""Encoders of transformers with long-short attention: converted, saved, loaded by AutoModel once this is imported."""

from longshort.hf.library import hf, loading, quiet  # first: it says what to install

from longshort.hf.conversion import Converted, Moved, convert  # isort: skip

__all__ = ["Converted", "Moved", "convert", "hf", "loading", "quiet"]
