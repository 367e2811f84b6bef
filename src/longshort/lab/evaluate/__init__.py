"""What a trained model is worth: evaluators as data, and the one function that runs them.

An evaluator knows data and a model that can be called. Training, `longshort evaluate`, reports and the demo all call
`evaluate` with the evaluators that a task lists.
"""

from longshort.lab.evaluate.evaluator import Advance, Evaluator, Share, evaluate, means, with_own_names

__all__ = ["Advance", "Evaluator", "Share", "evaluate", "means", "with_own_names"]
