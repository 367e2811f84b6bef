"""What is learned: batches, loss, evaluation. A task is handed a model and imports none."""

from longshort.tasks.language import LanguageModelling

__all__ = ["LanguageModelling"]
