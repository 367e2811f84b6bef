"""One file per architecture: its configuration, presets and module."""

from longshort.models.charlm import CharLM, CharLMConfig
from longshort.models.cvt import CvT, CvTConfig
from longshort.models.sequence import PairClassifier, PairConfig, SequenceClassifier, SequenceConfig
from longshort.models.timm import register_if_there
from longshort.models.vil import ViL, ViLConfig

register_if_there()

__all__ = [
    "CharLM",
    "CharLMConfig",
    "CvT",
    "CvTConfig",
    "PairClassifier",
    "PairConfig",
    "SequenceClassifier",
    "SequenceConfig",
    "ViL",
    "ViLConfig",
]
