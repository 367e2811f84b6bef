"""ViL-LS: the paper's Vision Longformer with long-short attention, and the weights that its authors released.

Four stages, each of a patch embedding with global tokens and of pre-norm blocks; the released ones have long-short
attention in the first two and full attention, where the grid is small, in the others.
"""
# no `from __future__ import annotations`: the hub mixin reads the type of `config` to load it again

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from longshort.models.hub import OnHub, check_layers
from longshort.models.pyramid import Pyramid, check_counts, preset_of, shares, stages_read
from longshort.nn.grid import Size
from longshort.nn.image import Block, Embedding, Stage
from longshort.nn.spec import Full, GridAttentionSpec, LongShort
from longshort.serial import registered

RATIO = 4  # of the feed-forward layers' inner width to the width
MOST_PIXELS = 65_536  # a side: a config that asks for more is damaged


@registered("ViLStage")
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
        check_counts(self, "width", "heads", "blocks", "stride")
        check_layers(self.blocks, "blocks")
        if self.global_tokens < 0:
            raise ValueError(f"global_tokens must not be negative, got {self.global_tokens}")
        if self.positions not in ("relative", "absolute"):
            raise ValueError(f"positions must be 'relative' or 'absolute', got {self.positions!r}")


@registered("ViLConfig")
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
        object.__setattr__(self, "stages", stages_read(self.stages, ViLStage))
        object.__setattr__(self, "size", (self.size,) * 2 if isinstance(self.size, int) else tuple(self.size))
        if min(self.size) < 1 or len(self.size) != 2:
            raise ValueError(f"size must be height and width of at least 1, got {self.size}")
        if max(self.size) > MOST_PIXELS:
            raise ValueError(f"size must be at most {MOST_PIXELS:,} pixels a side, got {self.size}")

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
        config = preset_of(PRESETS, name, changes)
        return cls(config.everywhere() if everywhere else config)

    @classmethod
    def from_released(
        cls, weights: str | Path | Mapping[str, Any], *, arch: str | None = None, size: int | None = None
    ) -> Self:
        """From what the paper's authors released: a .pth file, or what was read from one, wrapped or bare.

        arch: their string, such as "l1,h3,d96,..."; size: side of the training's images. Both are found from the
        weights unless given; weights without any table of positions do not tell them.
        """
        from longshort.models.vil_released import config_of, read_released, released_weights

        state = read_released(weights)
        model = cls(config_of(state, arch, size))
        model.load_state_dict(released_weights(state, model.state_dict()))
        return model.eval()
