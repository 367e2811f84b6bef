"""Files to batches: corpora, texts of the user's, their splits, and lanes that read them; knows no model."""

from longshort.data.corpus import CORPORA, Corpus, corpus
from longshort.data.download import DownloadError, fetch
from longshort.data.lanes import Lanes
from longshort.data.shard import Shard
from longshort.data.splits import Splits, split, split_text
from longshort.data.text import open_text

__all__ = [
    "CORPORA",
    "Corpus",
    "DownloadError",
    "Lanes",
    "Shard",
    "Splits",
    "corpus",
    "fetch",
    "open_text",
    "split",
    "split_text",
]
