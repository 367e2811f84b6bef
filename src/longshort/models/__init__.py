"""One file per architecture: its configuration, presets and module."""

from longshort.models.charlm import CharLM, CharLMConfig

__all__ = ["CharLM", "CharLMConfig"]
