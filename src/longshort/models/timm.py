"""The vision models under timm's create_model, where timm is installed.

import timm, longshort.models
model = timm.create_model("vil_ls_medium", num_classes=10, drop_path_rate=0.1)
maps = timm.create_model("cvt_ls_13", features_only=True)(images)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from longshort.models import cvt, vil
from longshort.models.pyramid import Pyramid

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, by colour
FIELDS = {  # what timm calls them
    "num_classes": "classes",
    "in_chans": "channels",
    "drop_rate": "dropout",
    "attn_drop_rate": "attention_dropout",
    "drop_path_rate": "drop_path",
}


def names() -> dict[str, tuple[Any, int]]:
    """All models, each with its config and the size of its images."""
    found: dict[str, tuple[Any, int]] = {f"vil_ls_{name}": (c, c.size[0]) for name, c in vil.PRESETS.items()}
    sizes = {name: int(name.rpartition("_")[2]) for name in cvt.PRESETS if name.endswith(("_384", "_448"))}
    return found | {f"cvt_{name}": (config, sizes.get(name, 224)) for name, config in cvt.PRESETS.items()}


def register_if_there() -> None:
    """An installation of timm that cannot be imported, or is too old, is left alone."""
    if importlib.util.find_spec("timm") is None:
        return
    try:
        from timm.models import generate_default_cfgs, is_model, register_model
    except Exception:  # whatever its own dependencies raise
        return
    module: Any = __import__(__name__, fromlist=["names"])
    module.default_cfgs = generate_default_cfgs({name: pretrained_cfg(size) for name, (_, size) in names().items()})
    for name, (config, _) in names().items():
        if not is_model(name):
            register_model(entry(name, config))


def pretrained_cfg(size: int) -> dict[str, Any]:
    """How images come in, and where timm finds the first and the last layer. There are no weights to download."""
    return dict(
        url="",
        num_classes=1000,
        input_size=(3, size, size),
        interpolation="bicubic",
        crop_pct=0.875 if size <= 224 else 1.0,
        mean=MEAN,
        std=DEVIATION,
        first_conv="stages.0.embedding.convolution",
        classifier="head",
        fixed_input_size=False,
    )


def entry(name: str, config: Any) -> Callable[..., Any]:
    """The function that timm calls for a model of this name."""

    def make(pretrained: bool = False, **keywords: Any) -> Any:
        from timm.models import build_model_with_cfg

        feature_cfg = dict(out_indices=tuple(range(len(config.stages))), feature_cls="getter")
        build = partial(built, config)
        return build_model_with_cfg(build, name, pretrained, feature_cfg=feature_cfg, **keywords)

    make.__name__, make.__qualname__, make.__module__ = name, name, __name__
    make.__doc__ = f"{name} of longshort, with the keywords {', '.join(FIELDS)} and the fields of its config."
    return make


def built(config: Any, **keywords: Any) -> Pyramid:
    """A model from timm's keywords; img_size is the size that tables of positions are made for."""
    keywords = {FIELDS.get(name, name): value for name, value in keywords.items()}
    size = keywords.pop("img_size", None)
    if size is not None and hasattr(config, "size"):
        keywords["size"] = size
    known = {f.name for f in fields(config)}
    if unknown := sorted(set(keywords) - known):
        raise ValueError(f"the model has no {', '.join(unknown)}; it has {', '.join([*FIELDS, *sorted(known)])}")
    model: Pyramid = replace(config, **keywords).build()
    return model
