"""Files and generators to batches: corpora and texts, labelled sequences and pairs; knows no model.

What is imported here needs no PyTorch; lanes and images, which make its tensors, are imported by name.
"""

from longshort.data.aan import Aan
from longshort.data.cifar10 import Cifar10
from longshort.data.corpus import CORPORA, Corpus, corpus
from longshort.data.download import DownloadError, fetch
from longshort.data.imdb import Imdb
from longshort.data.labelled import Labelled, LabelledPairs, LabelledSplits, Sequences
from longshort.data.listops import ListOps
from longshort.data.pathfinder import Pathfinder
from longshort.data.shard import Shard
from longshort.data.splits import Splits, split, split_text
from longshort.data.text import open_text

__all__ = [
    "CORPORA",
    "Aan",
    "Cifar10",
    "Corpus",
    "DownloadError",
    "Imdb",
    "Labelled",
    "LabelledPairs",
    "LabelledSplits",
    "ListOps",
    "Pathfinder",
    "Sequences",
    "Shard",
    "Splits",
    "corpus",
    "fetch",
    "open_text",
    "split",
    "split_text",
]
