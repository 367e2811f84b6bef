"""Tables of the paper, trained, judged and written beside its figures."""

from longshort.report.lra import Wish, report

__all__ = ["Wish", "report"]
