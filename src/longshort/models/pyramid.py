"""What the vision transformers have in common: stages of coarser and coarser grids, and what others ask of a backbone.

B batch, C width of the last stage, N tokens, G global tokens, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from longshort.nn.grid import resized
from longshort.nn.image import EPS, Stage, stretched

PER_STAGE = 8  # times that a block may be compiled: to train, to evaluate, for a few sizes


class Pyramid(nn.Module):
    """Images [B, channels, height, width] of any size to scores [B, K], or to a pyramid of feature maps.

    `classes` 0: no head, and features [B, C] come out.
    """

    config: Any

    def __init__(self, stages: Sequence[Stage], widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.widths, self.channels = tuple(widths), stages[0].embedding.convolution.in_channels
        self.num_features = self.widths[-1]
        self.norm = nn.LayerNorm(self.num_features, eps=EPS)
        self.head = head_of(self.num_features, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ViT: normal with deviation 0.02, cut off at two; biases 0. Convolutions are left as PyTorch makes them."""
        for name, p in self.named_parameters():
            if name.endswith(("relative_bias", "global_bias")):
                nn.init.trunc_normal_(p, std=0.02)
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding) and m.weight.numel():
                nn.init.trunc_normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, image: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(image))

    def forward_features(self, image: Tensor) -> Tensor:
        """Tokens of the last stage, normalised: [B, G + N, C]."""
        return self.norm(self.levels(image)[-1][0])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """From such tokens: what stands for the image is the first global token, or without one their mean."""
        pooled = x[:, 0] if self.last.global_tokens else x.mean(dim=1)
        return pooled if pre_logits else self.head(pooled)

    def forward_pyramid(self, image: Tensor) -> list[Tensor]:
        """The maps of all stages, [B, width, height, width of the grid]: for detection, segmentation and the like.

        Stage i has a stride of `strides[i]`; sides are rounded up. Global tokens are left out, and nothing normalises.
        """
        return [self.as_map(x, size, stage) for (x, size), stage in zip(self.levels(image), self.parts, strict=True)]

    def levels(self, image: Tensor) -> list[tuple[Tensor, tuple[int, int]]]:
        """Tokens and size of the grid, stage by stage."""
        if image.dim() != 4 or image.shape[1] != self.channels or 0 in image.shape[2:]:
            raise ValueError(
                f"images must be [batch, {self.channels} channels, height, width], got {tuple(image.shape)}"
            )
        if not image.is_floating_point():
            raise ValueError(f"images must be floating-point numbers, bytes of them normalised, got {image.dtype}")
        made = []
        for stage in self.parts:
            x, size = stage(image)
            made.append((x, size))
            if stage is not self.last:
                image = self.as_map(x, size, stage)
        return made

    def as_map(self, x: Tensor, size: tuple[int, int], stage: Stage) -> Tensor:
        return x[:, stage.global_tokens :].transpose(1, 2).unflatten(2, size)

    @property
    def parts(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    @property
    def last(self) -> Stage:
        return self.parts[-1]

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the stages, in pixels of the image."""
        found: list[int] = []
        for stage in self.parts:
            found.append(stage.embedding.stride * (found[-1] if found else 1))
        return tuple(found)

    @property
    def num_classes(self) -> int:
        return self.head.out_features if isinstance(self.head, nn.Linear) else 0

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for so many classes; 0: none."""
        if global_pool not in (None, "", "token", "avg"):
            raise ValueError(f"global_pool is the model's own, and {global_pool!r} is none that timm has for it")
        at = self.norm.weight
        self.head = head_of(self.num_features, num_classes).to(at.device, at.dtype)
        self.config = replace(self.config, classes=num_classes)  # which is saved with the weights

    def adapted(self, config: Any) -> Self:
        """The same weights in a model of another config: tables of positions are interpolated where it has more or
        fewer entries; a head for other classes, or layers that this model has not, begin anew.

            larger = model.adapted(replace(model.config, size=(384, 384)))
        """
        made = config.build().to(self.norm.weight.device, self.norm.weight.dtype).train(self.training)
        wanted = made.state_dict()
        made.load_state_dict({**wanted, **fitted(self.state_dict(), wanted)})
        return made

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """In training, compute blocks again for the gradients instead of keeping what they made: less memory, a third
        more time."""
        for stage in self.parts:
            stage.checkpointed = enable

    def compile(self, *args: Any, **keywords: Any) -> None:
        """Each block in its place, by torch.compile: those of a stage share their code."""
        from torch._dynamo import config

        config.recompile_limit = max(config.recompile_limit, PER_STAGE * len(self.stages))
        for stage in self.parts:
            for block in stage.blocks:
                block.compile(*args, **keywords)

    # What timm asks of a model

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        pairs = zip(self.widths, self.strides, strict=True)
        return [dict(num_chs=width, reduction=stride, module=f"stages.{i}") for i, (width, stride) in enumerate(pairs)]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW"] = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps of the stages with these indices (of the last so many, of all), and unless they alone are wanted
        the features that forward_head takes."""
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        count = len(self.stages)
        asked = range(count) if indices is None else range(count)[-indices:] if isinstance(indices, int) else indices
        if any(not -count <= i < count for i in asked):
            raise ValueError(f"indices must be stages, -{count} to {count - 1}, got {list(asked)}")
        taken = [i % count for i in asked]
        made = self.levels(x)
        features = self.norm(made[-1][0])
        if norm:  # the last stage alone has a norm
            made[-1] = (features, made[-1][1])
        maps = [self.as_map(*made[i], self.parts[i]) for i in taken]
        return maps if intermediates_only else (features, maps)

    def no_weight_decay(self) -> set[str]:
        """Parameters with two axes that are no weights all the same."""
        tables = {f"{n}.weight" for n, m in self.named_modules() if isinstance(m, nn.Embedding)}
        return tables | {n for n, _ in self.named_parameters() if n.endswith("_bias")}


def fitted(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """What of the weights a model that wants others of these shapes can take."""
    taken = {}
    for name, t in state.items():
        like = wanted.get(name)
        if like is None or name.startswith("head."):
            same = like is not None and like.shape == t.shape
        elif name.endswith("relative_bias"):
            t, same = resized(t, (like.shape[1], like.shape[2])), True
        elif name.endswith((".positions.rows.weight", ".positions.columns.weight")):
            t, same = stretched(t, len(like)), True
        elif like.shape != t.shape:
            raise ValueError(
                f"{name} is {tuple(t.shape)} and would have to be {tuple(like.shape)}: another architecture"
            )
        else:
            same = True
        if same:
            taken[name] = t
    return taken


def check_counts(stage: Any, *names: str) -> None:
    """That these fields are whole numbers of at least 1."""
    for name in names:
        if isinstance(value := getattr(stage, name), float) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value}")


def stages_read(stages: Sequence[Any], kind: type) -> tuple[Any, ...]:
    """Of a config."""
    if not stages:
        raise ValueError("stages must be at least one")
    if other := [type(stage).__name__ for stage in stages if not isinstance(stage, kind)]:
        raise ValueError(f"stages must be {kind.__name__}, got {other[0]}: they are those of another architecture")
    return tuple(stages)


def preset_of(presets: Mapping[str, Any], name: str, changes: Mapping[str, Any]) -> Any:
    """The config of that name, with other values of some fields."""
    if name not in presets:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(presets)}")
    known = [f.name for f in fields(presets[name])]
    if unknown := [field for field in changes if field not in known]:
        raise ValueError(f"the model has no {', '.join(unknown)}; it has {', '.join(known)}")
    return replace(presets[name], **changes)


def head_of(width: int, classes: int) -> nn.Module:
    if classes < 0:
        raise ValueError(f"classes must not be negative, got {classes}")
    if classes == 0:
        return nn.Identity()
    head = nn.Linear(width, classes)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def shares(drop_path: float, blocks: Sequence[int]) -> list[list[float]]:
    """The rate of each block, stage by stage: from 0 for the first to the full rate for the last."""
    rates = torch.linspace(0, drop_path, sum(blocks)).tolist()
    return [[rates.pop(0) for _ in range(count)] for count in blocks]
