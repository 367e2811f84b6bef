"""Trained models by name: the folder of a run, a checkpoint, a saved model, a released file, or a name on the hub."""

from longshort.lab.trained.trained import Kind, Trained, locate

__all__ = ["Kind", "Trained", "locate"]
