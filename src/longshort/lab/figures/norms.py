"""How much longer the keys and values of the window are than those of the rows: the paper's figure of DualLN.

A row is a weighted mean of keys or values, and the more these differ, the shorter their mean is. DualLN gives both the
same length at initialisation, whatever goes in; how large the ratio is without it depends on the input.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.lab.trained import Kind as TrainedKind
from longshort.lab.trained import Trained
from longshort.models import charlm, cvt
from longshort.models.sequence import Encoding, SequenceConfig
from longshort.nn.attention import Projections
from longshort.nn.norm import DualLN
from longshort.nn.spec import LongShort

SEED = 0  # of weights and made-up inputs
SIDE = 224  # of images, in pixels
LONGEST = {"language": 1_024, "encoder": 2_048}  # tokens of a text
PIECES = 2  # of a text, or images, at once
BYTES = 256
PER_TOKEN = 16  # bytes, more than tokens have on average
WITH, WITHOUT = "with DualLN", "without DualLN"
TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100)
COLOURS = {WITH: "#1f5f8b", WITHOUT: "#b0492f"}
ENCODER = SequenceConfig(LongShort(window=64, rank=32), classes=2, layers=6, width=256, heads=4, feedforward=1024)
Kind = Literal["language", "encoder", "vision"]
PANELS: dict[TrainedKind, Kind] = {  # whose place a model takes
    "language": "language",
    "sequences": "encoder",
    "masked": "encoder",
    "encoder": "encoder",
    "pictures": "vision",
}
AT_START: dict[Kind, tuple[str, Any]] = {  # the models that are drawn where no other of their kind is given
    "language": ("language model (causal), the paper's small one", charlm.PRESETS["small"]),
    "encoder": ("encoder (bidirectional), 6 layers of width 256", ENCODER),
    "vision": ("vision model, CvT*-LS-13", cvt.PRESETS["ls_13"]),
}


class Sample(NamedTuple):
    """A text of bytes, and what it is called."""

    name: str
    content: np.ndarray


@dataclass(frozen=True)
class Ratio:
    """Of a layer, counted from 1 among the model's long-short ones: the mean L2 norm of local keys (values) by that of
    the rows' keys (values)."""

    layer: int
    key: float
    value: float


@dataclass(frozen=True)
class Panel:
    """ratios: with DualLN and without. weights, input: what was measured, in words."""

    title: str
    weights: str
    input: str
    ratios: Mapping[str, Sequence[Ratio]]

    def facts(self) -> dict[str, Any]:
        about = {"model": self.title, "weights": self.weights, "input": self.input}
        return {**about, **{name: [asdict(ratio) for ratio in each] for name, each in self.ratios.items()}}


@torch.no_grad()
def norm_ratios(model: nn.Module, *inputs: Any) -> list[Ratio]:
    """Of every long-short layer with rows, for an input without padding, which would count.

    Norms are those of each head's part, as the head's scores see it; global tokens are neither local nor rows.
    """
    layers = long_short_layers(model)
    found: list[list[Tensor]] = [[] for _ in layers]  # by layer, of each call
    handles = [handle for layer, each in zip(layers, found, strict=True) for handle in watch(layer, each)]
    try:
        model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    means = [(i, torch.stack(each).mean(0)) for i, each in enumerate(found, start=1) if each]
    return [Ratio(i, *(local / rows).tolist()) for i, (local, rows) in means]


def long_short_layers(model: nn.Module) -> list[Projections]:
    return [m for m in model.modules() if isinstance(m, Projections)]


def watch(layer: Projections, found: list[Tensor]) -> list[Any]:
    """Hooks that append the mean norms of every call: [2, 2], of local ones and of rows, of keys and of values."""
    seen: dict[str, Any] = {}

    def mean_norms(both: Sequence[Tensor], count: int) -> Tensor:  # of the last `count`; both: [B, any, C]
        parts = (t[:, t.shape[1] - count :].unflatten(2, (layer.heads, -1)) for t in both)  # [B, count, H, D]
        return torch.stack([part.float().norm(dim=3).mean() for part in parts])

    def note_local(module: nn.Module, given: Any, out: Sequence[Tensor]) -> None:
        seen["local"] = out

    def note_tokens(module: nn.Module, given: Any, logits: Tensor) -> None:
        seen["tokens"] = logits.shape[1]  # what rows are made of; global tokens stand before them

    def note_rows(module: nn.Module, given: Any, out: Sequence[Tensor]) -> None:
        local, tokens, rows = seen.pop("local"), seen.pop("tokens"), out[0].shape[1]
        if rows:
            found.append(torch.stack([mean_norms(local, tokens), mean_norms(out, rows)]))

    norm = layer.norm
    pairs = ((norm.local, note_local), (layer.rows, note_tokens), (norm.global_, note_rows))
    return [module.register_forward_hook(hook) for module, hook in pairs]


def ratios_of_encoder(model: Any, tokens: Tensor) -> list[Ratio]:
    """Of a bidirectional encoder, ours or one of transformers', on tokens [B, N]."""
    ours = isinstance(model, Encoding)
    padding = 0 if ours else model.config.pad_token_id
    if padding is not None and (tokens == padding).any():
        raise ValueError(f"tokens have padding (token {padding}), which would count")
    return norm_ratios(model.encoder if ours else model, tokens)  # not our heads, some of which want pairs


def with_dual_norm(model: nn.Module, enabled: bool) -> nn.Module:
    """A copy in which every long-short layer has DualLN, or none has; one that it had not is as at initialisation."""
    made = deepcopy(model)
    for layer in long_short_layers(made):
        if isinstance(layer.norm.local, nn.LayerNorm) != enabled:
            layer.norm = DualLN(layer.width, enabled=enabled, impl=layer.impl).to(layer.query.weight)
    return made


def panel_at_start(kind: Kind, text: Sample) -> Panel:
    """Of the model that stands for its kind."""
    title, config = AT_START[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = config.build()
    return panel_of(kind, title, f"at initialisation, seed {SEED}", model, *input_of(kind, model, text, SIDE))


def panel_of_model(kind: Kind, trained: Trained, label: str, text: Sample) -> Panel:
    """Of a model that was trained, saved or converted, with its own weights."""
    model: Any = trained.model()
    if not long_short_layers(model):
        raise ValueError(f"{trained.name} has no long-short attention, so there is nothing to compare")
    side = trained.view(model).side if trained.vision else SIDE
    converted = hasattr(model.config, "model_type")  # a model of transformers
    inputs = tokens_of(trained, model, text) if converted else input_of(kind, model, text, side)
    own = any(isinstance(layer.norm.local, nn.LayerNorm) for layer in long_short_layers(model))
    return panel_of(kind, label, f"its own weights, made {WITH if own else WITHOUT}", model, *inputs)


def panel_of(kind: Kind, title: str, weights: str, model: nn.Module, given: Tensor, words: str) -> Panel:
    """With and without DualLN; all other weights are the same."""
    measure = ratios_of_encoder if kind == "encoder" else norm_ratios
    ratios = {name: measure(with_dual_norm(model, name == WITH), given) for name in (WITH, WITHOUT)}
    if not ratios[WITH]:
        raise ValueError(f"{title}: no layer has rows for {words}, so there is nothing to compare")
    return Panel(title, weights, words, ratios)


def tokens_of(trained: Trained, model: Any, text: Sample) -> tuple[Tensor, str]:
    """The beginning of the text in a converted model's own tokens, [1, N]."""
    longest = min(model.config.longest, LONGEST["encoder"])
    words = bytes(text.content[: PER_TOKEN * longest]).decode(errors="replace")
    encoded = trained.tokenizer()(words, truncation=True, max_length=longest, return_tensors="pt")
    return encoded.input_ids, f"{text.name}, {encoded.input_ids.shape[1]:,} tokens"


def input_of(kind: Kind, model: Any, text: Sample, side: int) -> tuple[Tensor, str]:
    """Without padding, and what it is in words: the beginning of the text, or for images, and for encoders that do not
    read bytes, something random."""
    if kind == "vision":
        return smooth_images(side), f"{PIECES} made-up images, {side}²"
    if kind == "encoder" and model.config.vocabulary <= BYTES:
        generator = torch.Generator().manual_seed(SEED)
        shape = (PIECES, min(model.config.length, LONGEST[kind]))
        return torch.randint(1, model.config.vocabulary, shape, generator=generator), f"{shape[1]:,} random tokens"
    longest = model.config.length if kind == "encoder" else model.config.memory or LONGEST[kind]
    length = min(longest, LONGEST[kind], len(text.content) // PIECES)
    tokens = torch.from_numpy(text.content[: PIECES * length].astype(np.int64)).view(PIECES, length)
    return tokens + (kind == "encoder"), f"{text.name}, {PIECES} × {length:,} characters"  # encoders pad with 0


def smooth_images(side: int) -> Tensor:
    """Made-up images [B, 3, side, side] of mean 0 and deviation 1 that change slowly, as photographs do: noise at every
    scale from 2 × 2 on, the finer the fainter."""
    generator = torch.Generator().manual_seed(SEED)
    made, size = torch.zeros(PIECES, 3, side, side), 2
    while size <= side:
        noise = torch.randn(PIECES, 3, size, size, generator=generator)
        made += F.interpolate(noise, size=(side, side), mode="bilinear") / size
        size *= 2
    return (made - made.mean((2, 3), keepdim=True)) / made.std((2, 3), keepdim=True)


def draw_norm_ratios(panels: Sequence[Panel], path: Path) -> None:
    """Write a PNG: a panel for each model."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(max(4.3 * columns, 8), 4 * lines + 1.3), dpi=100, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    ratios = [ratio for panel in panels for each in panel.ratios.values() for ratio in each]
    found = [r for ratio in ratios for r in (ratio.key, ratio.value)]
    lowest, highest = min(0.85, min(found) / 1.1), max(2, *found) * 1.15
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.axhline(1, color="#8a8a8a", linewidth=1, zorder=0)
        for name, each in panel.ratios.items():
            at, colour = [r.layer for r in each], COLOURS[name]
            axes.plot(at, [r.key for r in each], "o-", color=colour, label=f"keys, {name}")
            axes.plot(at, [r.value for r in each], "s--", color=colour, label=f"values, {name}", mfc="white", ms=5)
        axes.set(xlabel="layer", yscale="log", ylim=(lowest, highest))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(FixedLocator([t for t in TICKS if lowest <= t <= highest]))
        axes.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}×")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{panel.title}\n{panel.weights}\n{panel.input}", loc="left", fontsize=9.5)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("norm in the window / norm of the rows")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        "How much longer the window's keys and values are than the rows', mean L2 norms of each head\n"
        "Above 1×, rows have smaller scores and add less than tokens of the window; DualLN starts both on one scale",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    figure.savefig(path)
