"""Files and generators to batches: corpora and texts, labelled sequences and pairs; knows no model.

What is imported here needs no PyTorch; lanes and images, which make its tensors, are imported by name.
"""

from longshort.lab.data.aan import Aan
from longshort.lab.data.cifar10 import Cifar10
from longshort.lab.data.corpus import CORPORA, Corpus, corpus
from longshort.lab.data.download import DownloadError, fetch
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.labelled import Labelled, LabelledPairs, LabelledSplits, Sequences
from longshort.lab.data.listops import ListOps
from longshort.lab.data.pathfinder import Pathfinder
from longshort.lab.data.shard import Shard
from longshort.lab.data.splits import Splits, split, split_text
from longshort.lab.data.text import open_text

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
