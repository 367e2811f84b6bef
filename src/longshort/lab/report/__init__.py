"""Tables, trained, evaluated and written: those of the paper beside its figures, and ours."""

from longshort.lab.report.runs import Wish

__all__ = ["Wish"]
