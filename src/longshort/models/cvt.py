"""CvT*-LS: the paper's Convolutional vision Transformer with long-short attention, and CvT with full attention.

Three stages, each of an overlapping convolution and of pre-norm blocks whose queries, keys, values and row logits come
from depth-wise separable convolutions. A CLS token in the last stage; no positions.

What the paper leaves open: CLS has no neighbours, and goes through the linear halves of the convolutions alone; in
long-short attention it is a global token. Full attention has as many keys as queries, as in the paper's own CvT.
"""
# no `from __future__ import annotations`: the hub mixin reads the type of `config` to load it again

from dataclasses import dataclass, replace
from typing import Any, Self

from longshort.models.hub import OnHub, check_layers
from longshort.models.pyramid import Pyramid, check_counts, preset_of, shares, stages_read
from longshort.nn.image import Block, Embedding, Stage
from longshort.nn.spec import Full, GridAttentionSpec, LongShort
from longshort.serial import registered


@registered("CvTStage")
@dataclass(frozen=True)
class CvTStage:
    """kernel, stride: of the convolution that makes its tokens. ratio: of the feed-forward layers' width to `width`."""

    width: int
    heads: int
    blocks: int
    attention: GridAttentionSpec
    kernel: int = 3
    stride: int = 2
    ratio: int = 4

    def __post_init__(self) -> None:
        check_counts(self, "width", "heads", "blocks", "kernel", "stride", "ratio")
        check_layers(self.blocks, "blocks")
        if self.kernel < self.stride:
            raise ValueError(f"kernel {self.kernel} is smaller than stride {self.stride}: pixels would be lost")


@registered("CvTConfig")
@dataclass(frozen=True)
class CvTConfig:
    """What the weights depend on. dropout is on what layers add and inside the feed-forward layers; drop_path is the
    rate of the last block."""

    stages: tuple[CvTStage, ...]
    classes: int = 1000
    channels: int = 3
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", stages_read(self.stages, CvTStage))

    def build(self) -> "CvT":
        return CvT(self)

    def with_attention(self, *attentions: GridAttentionSpec) -> "CvTConfig":
        """The same with other attentions, one a stage."""
        pairs = zip(self.stages, attentions, strict=True)
        return replace(self, stages=tuple(replace(stage, attention=attention) for stage, attention in pairs))


def three_stages(
    blocks: tuple[int, int, int], widths: tuple[int, int, int], attentions: tuple[GridAttentionSpec, ...]
) -> CvTConfig:
    """All heads are 64 wide."""
    kernels, strides = (7, 3, 3), (4, 2, 2)
    return CvTConfig(
        tuple(
            CvTStage(width=width, heads=width // 64, blocks=count, attention=attention, kernel=kernel, stride=stride)
            for count, width, attention, kernel, stride in zip(
                blocks, widths, attentions, kernels, strides, strict=True
            )
        )
    )


def long_short(windows: tuple[int, int, int], ranks: tuple[int, int, int]) -> tuple[GridAttentionSpec, ...]:
    return tuple(LongShort(window=w, rank=r) for w, r in zip(windows, ranks, strict=True))


AT_224, AT_384, AT_448 = (
    long_short((8, 4, 2), (64, 16, 4)),
    long_short((12, 6, 3), (64, 16, 4)),
    long_short((16, 8, 4), (128, 32, 8)),
)
FULL = (Full(), Full(), Full())
NARROW, WIDE = (64, 192, 384), (128, 256, 384)

PRESETS = {
    "ls_13": three_stages((1, 2, 10), NARROW, AT_224),
    "ls_17": three_stages((3, 4, 10), WIDE, AT_224),
    "ls_21": three_stages((1, 4, 16), NARROW, AT_224),
    "ls_21s": three_stages((3, 4, 14), WIDE, AT_224),
    "ls_21_384": three_stages((1, 4, 16), NARROW, AT_384),
    "ls_21_448": three_stages((1, 4, 16), NARROW, AT_448),
    "13": three_stages((1, 2, 10), NARROW, FULL),
    "21": three_stages((1, 4, 16), NARROW, FULL),
}


class CvT(Pyramid, OnHub, tags=["long-short-transformer", "image-classification"]):
    """Scores of the classes for images of any size, or a pyramid of feature maps with strides 4, 8 and 16.

    model = CvT.preset("ls_13")                           # CvT*-LS-13; "13" is CvT-13 with full attention
    scores = model(torch.randn(2, 3, 224, 224))           # [2, 1000]
    """

    def __init__(self, config: CvTConfig) -> None:
        stages, channels = [], config.channels
        rates = shares(config.drop_path, [s.blocks for s in config.stages])
        for s, drop_path in zip(config.stages, rates, strict=True):
            cls = int(s is config.stages[-1])
            embedding = Embedding(channels, s.width, kernel=s.kernel, stride=s.stride, global_tokens=cls)
            blocks = []
            for rate in drop_path:
                attention = s.attention.build_conv(
                    s.width, s.heads, dropout=config.attention_dropout, global_tokens=cls
                )
                blocks.append(
                    Block(attention, s.width, inner=s.ratio * s.width, dropout=config.dropout, drop_path=rate)
                )
            stages.append(Stage(embedding, blocks))
            channels = s.width
        super().__init__(stages, [s.width for s in config.stages], config.classes)
        self.config = config

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A model of the paper, with random weights. changes: other fields of its config, such as classes=10 or
        drop_path=0.1."""
        return cls(preset_of(PRESETS, name, changes))
