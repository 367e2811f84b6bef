"""Figures that explain the attention."""
