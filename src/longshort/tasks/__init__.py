"""What is learned: batches, loss, evaluation. A task is handed a model and imports none."""

from longshort.tasks.classify import Classification
from longshort.tasks.language import LanguageModelling
from longshort.tasks.masked import MaskedModelling
from longshort.tasks.pairs import PairClassification
from longshort.tasks.text import MaskedText, TextClassification

__all__ = [
    "Classification",
    "LanguageModelling",
    "MaskedModelling",
    "MaskedText",
    "PairClassification",
    "TextClassification",
]
