"""Functions that return a Run: one for every training of the paper, and a few of ours. They hold no logic.

`longshort recipes` lists them; `longshort train NAME` does them.
"""

from __future__ import annotations

from collections.abc import Callable

from longshort.lab.recipes import charlm, imagenet, lra, roberta
from longshort.lab.train import Run

Recipe = Callable[..., Run]

RECIPES: dict[str, Recipe] = {
    "charlm.enwik8_small": charlm.enwik8_small,
    "charlm.enwik8_large": charlm.enwik8_large,
    "charlm.text8_small": charlm.text8_small,
    "charlm.enwik8_dualln": charlm.enwik8_dualln,
    "charlm.enwik8_quick": charlm.enwik8_quick,
    "charlm.text": charlm.text,
    "charlm.demo": charlm.demo,
    "lra.listops": lra.listops,
    "lra.text": lra.text,
    "lra.retrieval": lra.retrieval,
    "lra.image": lra.image,
    "lra.pathfinder": lra.pathfinder,
    "lra.listops_modern": lra.listops_modern,
    "lra.text_modern": lra.text_modern,
    "imagenet.vil_ls_medium": imagenet.vil_ls_medium,
    "imagenet.vil_ls_base": imagenet.vil_ls_base,
    "imagenet.vil_ls_medium_384": imagenet.vil_ls_medium_384,
    "imagenet.cvt_ls_13": imagenet.cvt_ls_13,
    "imagenet.cvt_ls_17": imagenet.cvt_ls_17,
    "imagenet.cvt_ls_21": imagenet.cvt_ls_21,
    "imagenet.cvt_ls_21s": imagenet.cvt_ls_21s,
    "imagenet.cvt_13": imagenet.cvt_13,
    "imagenet.cvt_21": imagenet.cvt_21,
    "imagenet.imagenette": imagenet.imagenette,
    "imagenet.pictures": imagenet.pictures,
    "roberta.base": roberta.base,
    "roberta.large": roberta.large,
    "roberta.imdb": roberta.imdb,
}
