"""What is learned: batches, loss, evaluation. A task is handed a model and imports none."""

from longshort.lab.tasks.classify import Classification
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.tasks.language import LanguageModelling
from longshort.lab.tasks.masked import MaskedModelling
from longshort.lab.tasks.pairs import PairClassification
from longshort.lab.tasks.text import MaskedText, TextClassification

__all__ = [
    "Classification",
    "ImageClassification",
    "LanguageModelling",
    "MaskedModelling",
    "MaskedText",
    "PairClassification",
    "TextClassification",
]
