"""ViL-LS: the paper's Vision Longformer with long-short attention, and the weights that its authors released.

Four stages, each of a patch embedding with global tokens and of pre-norm blocks; the released ones have long-short
attention in the first two and full attention, where the grid is small, in the others.
"""
# no `from __future__ import annotations`: the hub mixin reads the type of `config` to load it again

import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from longshort.models.hub import OnHub
from longshort.models.pyramid import Pyramid, shares
from longshort.nn.grid import Size
from longshort.nn.image import Block, Embedding, Stage
from longshort.nn.spec import Full, GridAttentionSpec, LongShort
from longshort.record import from_json

RATIO = 4  # of the feed-forward layers' inner width to the width


@dataclass(frozen=True)
class ViLStage:
    """`stride`: pixels of the stage before, on a side, that a token is made of.

    positions: "relative" biases in the attention, or learned "absolute" ones added to the tokens.
    """

    width: int
    heads: int
    blocks: int
    attention: GridAttentionSpec
    stride: int = 2
    global_tokens: int = 0
    positions: Literal["relative", "absolute"] = "relative"

    def __post_init__(self) -> None:
        for name in ("width", "heads", "blocks", "stride"):
            if isinstance(getattr(self, name), float) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {getattr(self, name)}")
        if self.global_tokens < 0:
            raise ValueError(f"global_tokens must not be negative, got {self.global_tokens}")
        if self.positions not in ("relative", "absolute"):
            raise ValueError(f"positions must be 'relative' or 'absolute', got {self.positions!r}")


@dataclass(frozen=True)
class ViLConfig:
    """What the weights depend on. size: height and width of the images that tables of positions are made for; images of
    other sizes go in all the same, and tables are interpolated where there must be more or fewer entries.

    dropout is on what layers add and inside the feed-forward layers; drop_path is the rate of the last block.
    """

    stages: tuple[ViLStage, ...]
    size: Size = (224, 224)
    classes: int = 1000
    channels: int = 3
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        stages = tuple(from_json(stage) if isinstance(stage, dict) else stage for stage in self.stages)
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "size", (self.size,) * 2 if isinstance(self.size, int) else tuple(self.size))
        if not self.stages:
            raise ValueError("stages must be at least one")
        if min(self.size) < 1 or len(self.size) != 2:
            raise ValueError(f"size must be height and width of at least 1, got {self.size}")

    def build(self) -> "ViL":
        return ViL(self)

    def everywhere(self) -> "ViLConfig":
        """The same with long-short attention in all stages, as in the first: linear in the number of pixels."""
        first = self.stages[0].attention
        stages = (replace(s, attention=first) if isinstance(s.attention, Full) else s for s in self.stages)
        return replace(self, stages=tuple(stages))


def released(window: int, blocks: tuple[int, int, int, int], size: int) -> ViLConfig:
    """The layout that the three released models share."""
    local = LongShort(window=window, rank=8)
    return ViLConfig(
        stages=(
            ViLStage(width=96, heads=3, blocks=blocks[0], attention=local, stride=4, global_tokens=1),
            ViLStage(width=192, heads=3, blocks=blocks[1], attention=local, global_tokens=1),
            ViLStage(width=384, heads=6, blocks=blocks[2], attention=Full(), global_tokens=1),
            ViLStage(width=768, heads=12, blocks=blocks[3], attention=Full()),
        ),
        size=(size, size),
    )


PRESETS = {
    "medium": released(window=7, blocks=(1, 4, 16, 1), size=224),
    "base": released(window=7, blocks=(1, 8, 24, 1), size=224),
    "medium_384": released(window=8, blocks=(1, 4, 16, 1), size=384),
}


class ViL(Pyramid, OnHub, tags=["long-short-transformer", "image-classification"]):
    """Scores of the classes for images of any size, or a pyramid of feature maps with strides 4, 8, 16 and 32.

    model = ViL.preset("medium")                          # or ViL.from_released("model_best.pth")
    scores = model(torch.randn(2, 3, 224, 224))           # [2, 1000]
    maps = model.forward_pyramid(torch.randn(2, 3, 600, 801))
    """

    def __init__(self, config: ViLConfig) -> None:
        stages, channels, grid = [], config.channels, config.size
        rates = shares(config.drop_path, [s.blocks for s in config.stages])
        for s, drop_path in zip(config.stages, rates, strict=True):
            grid = (-(-grid[0] // s.stride), -(-grid[1] // s.stride))
            absolute = s.positions == "absolute"
            embedding = Embedding(
                channels,
                s.width,
                kernel=s.stride,
                stride=s.stride,
                global_tokens=s.global_tokens,
                grid=grid if absolute else None,
            )
            blocks = []
            for rate in drop_path:
                attention = s.attention.build_grid(
                    s.width,
                    s.heads,
                    grid,
                    relative=not absolute,
                    dropout=config.attention_dropout,
                    global_tokens=s.global_tokens,
                )
                blocks.append(Block(attention, s.width, inner=RATIO * s.width, dropout=config.dropout, drop_path=rate))
            stages.append(Stage(embedding, blocks))
            channels = s.width
        super().__init__(stages, [s.width for s in config.stages], config.classes)
        self.config = config

    @classmethod
    def preset(cls, name: str, *, everywhere: bool = False, **changes: Any) -> Self:
        """A model of the paper, with random weights. everywhere: long-short attention in all stages; changes: other
        fields of its config, such as classes=10, size=(512, 512), drop_path=0.3."""
        if name not in PRESETS:
            raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
        config = PRESETS[name].everywhere() if everywhere else PRESETS[name]
        return cls(replace(config, **changes))

    @classmethod
    def from_released(
        cls, weights: str | Path | Mapping[str, Any], *, arch: str | None = None, size: int | None = None
    ) -> Self:
        """From what the paper's authors released: a .pth file, or what was read from one, wrapped or bare.

        arch: their string, such as "l1,h3,d96,..."; size: side of the training's images. Both are found from the
        weights unless given; weights without any table of positions do not tell them.
        """
        state = read_released(weights)
        model = cls(config_of(state, arch, size))
        empty = {name: t for name, t in model.state_dict().items() if t.numel() == 0}  # of rank 0, which they leave out
        model.load_state_dict({**empty, **converted(state)})
        return model.eval()


# The authors' format: layer1 to layer4, each of a patch embedding (0) and, in turns, attention and MLP (1, 2, ...)

WRAPPERS = ("net", "model", "state_dict", "model_state_dict", "module", "model_ema")
NAMES = {
    "0.proj": "embedding.convolution",
    "0.norm_embed": "embedding.norm",
    "attn.proj": "attention.out",
    "attn.to_dynamic_projection": "attention.rows",
    "attn.dual_ln_full": "attention.norm.local",
    "attn.dual_ln_dp": "attention.norm.global_",
    "mlp.fc1": "feedforward.inner",
    "mlp.fc2": "feedforward.out",
}


def read_released(weights: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The bare state dict, with the authors' names."""
    if not isinstance(weights, Mapping):
        try:
            weights = torch.load(weights, map_location="cpu", weights_only=True)
        except (
            pickle.UnpicklingError,
            EOFError,
            RuntimeError,
            OSError,
        ) as error:  # all of them of files that are cut off
            if isinstance(error, OSError) and error.filename is not None:  # which cannot be opened at all
                raise
            reason = str(error).partition("\n")[0] or "it is empty"
            raise ValueError(
                f"{weights} holds more than tensors and numbers, or is no file of torch.save: {reason}. If you trust "
                "it, read it with torch.load(..., weights_only=False) and give what came out"
            ) from None
    found: Any = weights
    while isinstance(found, Mapping) and (inside := [found[name] for name in WRAPPERS if name in found]):
        found = inside[0]
    if not isinstance(found, Mapping):
        raise ValueError(f"the weights must be a state dict, wrapped or bare, got {type(found).__name__}")
    state = {name.removeprefix("module."): t for name, t in found.items()}
    if "layer1.0.proj.weight" not in state:
        some = ", ".join(list(state)[:3]) or "nothing"
        raise ValueError(
            f"these are no weights of a released ViL-LS: layer1.0.proj.weight is not among them, but {some}"
        )
    return state


def config_of(state: Mapping[str, Tensor], arch: str | None = None, size: int | None = None) -> ViLConfig:
    """Of a model with the authors' weights."""
    numbers = [at for at in range(1, 5) if f"layer{at}.0.proj.weight" in state]
    stages = tuple(stage_of(state, f"layer{at}.") for at in numbers) if arch is None else stages_from(arch)
    if size is None:
        grid, size = 1, 224
        for at, stage in zip(numbers, stages, strict=True):
            grid *= stage.stride
            if (index := state.get(f"layer{at}.1.attn.relative_position_index")) is not None:
                size = size if isinstance(stage.attention, LongShort) else grid * math.isqrt(len(index))
            elif (rows := state.get(f"layer{at}.0.x_pos_embed")) is not None:
                size = grid * rows.shape[1]
    classes, _ = state["head.weight"].shape
    channels = state["layer1.0.proj.weight"].shape[1]
    return ViLConfig(stages, size=(size, size), classes=classes, channels=channels)


def stage_of(state: Mapping[str, Tensor], prefix: str) -> ViLStage:
    """As the shapes of its weights tell."""
    own = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
    table = own.get("1.attn.local_relative_position_bias_table")
    if table is None:
        raise ValueError(f"{prefix}1.attn has no relative positions, whose shape tells its heads: give arch")
    width, _, stride, _ = own["0.proj.weight"].shape
    heads, rows = table.shape[1], own.get("1.attn.to_dynamic_projection.weight")
    attention: GridAttentionSpec = Full()
    if "1.attn.dual_ln_full.weight" in own:
        window = math.isqrt(len(own["1.attn.relative_position_index"]))
        attention = LongShort(window=window, rank=0 if rows is None else len(rows) // heads)
    return ViLStage(
        width=width,
        heads=heads,
        blocks=sum(name.endswith("attn.qkv.weight") for name in own),
        attention=attention,
        stride=stride,
        global_tokens=own["0.cls_token"].shape[1] if "0.cls_token" in own else 0,
    )


def stages_from(arch: str) -> tuple[ViLStage, ...]:
    """Stages joined by "_", each l=number, h=heads, d=width, n=blocks, s=1 long-short / 0 full attention, g=global
    tokens, p=stride, f=window, a=1 absolute / 0 relative positions, r=rank."""
    stages: list[ViLStage] = []
    for text in arch.split("_"):
        try:
            given = {field[0]: int(field[1:]) for field in text.split(",")}
        except (ValueError, IndexError):
            raise ValueError(
                f"arch has a stage {text!r}, where fields such as h3 are expected, joined by commas"
            ) from None
        if unknown := set(given) - set("lhdnsgpfar"):
            raise ValueError(f"arch has a stage {text!r} with fields {', '.join(sorted(unknown))}, which mean nothing")
        f = dict(h=3, d=192, n=1, s=1, g=1, p=2, f=7, a=1, r=0) | given  # theirs, where one is not given
        full = not f["s"] or any(isinstance(stage.attention, Full) for stage in stages)  # and so are all after it
        stages.append(
            ViLStage(
                width=f["d"],
                heads=f["h"],
                blocks=f["n"],
                attention=Full() if full else LongShort(window=f["f"], rank=f["r"]),
                stride=f["p"],
                global_tokens=f["g"],
                positions="absolute" if f["a"] else "relative",
            )
        )
    return tuple(stages)


def converted(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with our names."""
    made: dict[str, Tensor] = {}
    for name, t in state.items():
        if not name.startswith("layer"):
            made[name] = t  # norm and head
            continue
        layer, number, rest = name.split(".", 2)
        stage = f"stages.{int(layer.removeprefix('layer')) - 1}."
        if number == "0":
            made |= of_embedding(stage + "embedding.", rest, t)
        else:
            block = f"{stage}blocks.{(int(number) - 1) // 2}."
            made |= of_block(block, "attention_norm." if int(number) % 2 else "feedforward_norm.", rest, t, state, name)
    return made


def of_embedding(to: str, name: str, t: Tensor) -> dict[str, Tensor]:
    tables = {"cls_token": "global_tokens", "cls_pos_embed": "positions.global_tokens"}
    tables |= {"x_pos_embed": "positions.rows", "y_pos_embed": "positions.columns"}
    if name in tables:
        return {f"{to}{tables[name]}.weight": t[0]} if t.shape[1] else {}
    layer, kind = name.rsplit(".", 1)
    return {f"{to}{dict(proj='convolution', norm_embed='norm')[layer]}.{kind}": t}


def of_block(to: str, norm: str, name: str, t: Tensor, state: Mapping[str, Tensor], full: str) -> dict[str, Tensor]:
    layer, kind = name.rsplit(".", 1)
    if layer == "norm":
        return {f"{to}{norm}{kind}": t}
    if layer == "attn.qkv":
        parts = zip(("query", "key", "value"), t.chunk(3), strict=True)
        return {f"{to}attention.{part}.{kind}": own for part, own in parts}
    if layer in NAMES:
        return {f"{to}{NAMES[layer]}.{kind}": t}
    to = f"{to}attention."
    if kind == "local_relative_position_bias_table":
        index = state[full.replace(kind, "relative_position_index")]
        return {f"{to}relative_bias": by_offset(t, index)}
    if kind == "g2l_relative_position_bias":
        return {f"{to}from_global_bias": t[0], f"{to}to_global_bias": t[1]}
    if kind == "g2g_relative_position_bias":
        return {f"{to}among_global_bias": t}
    if kind == "relative_position_index":
        return {}
    raise ValueError(f"{full} is not known from the released models")


def by_offset(table: Tensor, index: Tensor) -> Tensor:
    """[H, offsets, offsets] from a table [entries, H] and the entry of every query of a group and key of the grown
    group, both row by row. In theirs, some offsets share an entry."""
    side, keys = (math.isqrt(n) for n in index.shape)
    reach = (keys - side) // 2
    y, x = (torch.arange(side * side) // side)[:, None], (torch.arange(side * side) % side)[:, None]
    down, right = torch.arange(keys * keys) // keys - reach, torch.arange(keys * keys) % keys - reach
    most = side + reach - 1
    made = table.new_zeros(table.shape[1], 2 * most + 1, 2 * most + 1)
    made[:, y - down + most, x - right + most] = table[index].permute(2, 0, 1)
    return made
