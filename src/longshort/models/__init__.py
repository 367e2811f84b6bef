"""One file per architecture: its configuration, presets and module."""

from longshort.models.charlm import CharLM, CharLMConfig
from longshort.models.sequence import PairClassifier, PairConfig, SequenceClassifier, SequenceConfig

__all__ = ["CharLM", "CharLMConfig", "PairClassifier", "PairConfig", "SequenceClassifier", "SequenceConfig"]
