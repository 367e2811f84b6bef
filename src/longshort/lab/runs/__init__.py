"""Runs on the disk: what was asked for, how far it is, and what came out. Knows no framework."""
