"""The weights of ViL-LS as its authors released them, with our names.

Theirs are layer1 to layer4, each of a patch embedding (0) and, in turns, attention and MLP (1, 2, ...).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longshort.models.vil import ViLConfig, ViLStage
from longshort.nn.spec import Full, GridAttentionSpec, LongShort

WRAPPERS = ("net", "model", "state_dict", "model_state_dict", "module", "model_ema")
NAMES = {
    "attn.proj": "attention.out",
    "attn.to_dynamic_projection": "attention.rows",
    "attn.dual_ln_full": "attention.norm.local",
    "attn.dual_ln_dp": "attention.norm.global_",
    "mlp.fc1": "feedforward.inner",
    "mlp.fc2": "feedforward.out",
}


AXES = {  # of those whose shapes tell the layout
    "0.proj.weight": 4,
    "0.cls_token": 3,
    "0.cls_pos_embed": 3,
    "0.x_pos_embed": 3,
    "0.y_pos_embed": 3,
    "attn.to_dynamic_projection.weight": 2,
    "attn.local_relative_position_bias_table": 2,
    "attn.relative_position_index": 2,
    "attn.g2l_relative_position_bias": 3,
    "head.weight": 2,
}
KNOWN = re.compile(r"layer[1-4]\.(0|[1-9]\d*)\.(\w+)(\.\w+)*|(norm|head)\.(weight|bias)")


def read_released(weights: str | Path | Mapping[str, Any]) -> dict[str, Tensor]:
    """The bare state dict, with the authors' names."""
    found: Any = weights
    if isinstance(found, str | Path):
        found = read_file(Path(found))
    while isinstance(found, Mapping) and (inside := [found[name] for name in WRAPPERS if name in found]):
        found = inside[0]
    if not isinstance(found, Mapping):
        raise ValueError(f"the weights must be a file or a state dict, wrapped or bare, got {type(found).__name__}")
    state = {str(name).removeprefix("module."): t for name, t in found.items()}
    if "layer1.0.proj.weight" not in state:
        some = ", ".join(list(state)[:3]) or "nothing"
        raise ValueError(
            f"these are no weights of a released ViL-LS: layer1.0.proj.weight is not among them, but {some}"
        )
    for name, t in state.items():
        state[name] = t = torch.from_numpy(t) if isinstance(t, np.ndarray) else t
        if not isinstance(t, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(t).__name__}")
        if not KNOWN.fullmatch(name):
            raise ValueError(f"{name} is not known from the released models")
        axes = next((axes for end, axes in AXES.items() if name.endswith(end)), None)
        if axes is not None and (t.dim() != axes or (0 in t.shape and "cls" not in name)):
            raise ValueError(f"{name} must have {axes} axes, none of them empty, got {tuple(t.shape)}")
    return state


def read_file(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.filename is not None:  # it cannot be opened at all
            raise
        problem: Exception = error
    except Exception as error:  # of damaged files, the unpickler raises nearly everything
        problem = error
    if "Unsupported global" in str(problem):
        raise ValueError(
            f"{path} holds more than tensors and numbers. If you trust it, read it with torch.load(..., "
            "weights_only=False) and give what came out"
        )
    raise ValueError(f"{path} is no file of torch.save, or it is cut off or damaged ({type(problem).__name__})")


def released_weights(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For a model that wants weights of these names and shapes."""
    made = {name: t for name, t in wanted.items() if t.numel() == 0}  # of rank 0, which they leave out
    made |= converted(state)
    wrong = [f"{name} is missing" for name in wanted if name not in made]
    wrong += [f"{name} has no place" for name in made if name not in wanted]
    wrong += [
        f"{name} is {tuple(t.shape)} and would have to be {tuple(wanted[name].shape)}"
        for name, t in made.items()
        if name in wanted and t.shape != wanted[name].shape
    ]
    if wrong:
        raise ValueError(
            f"the weights do not fit their layout, by our names: {'; '.join(wrong[:3])} ({len(wrong)} such)"
        )
    return made


def config_of(state: Mapping[str, Tensor], arch: str | None = None, size: int | None = None) -> ViLConfig:
    """Of a model with the authors' weights."""
    numbers = [at for at in range(1, 5) if f"layer{at}.0.proj.weight" in state]
    stages = tuple(stage_of(state, f"layer{at}.") for at in numbers) if arch is None else stages_from(arch)
    if len(stages) != len(numbers):
        raise ValueError(f"arch has {len(stages)} stages, and the weights are of {len(numbers)}")
    if size is None:
        grid, size = 1, 224
        for at, stage in zip(numbers, stages, strict=True):
            grid *= stage.stride
            if (index := state.get(f"layer{at}.1.attn.relative_position_index")) is not None:
                size = size if isinstance(stage.attention, LongShort) else grid * math.isqrt(len(index))
            elif (rows := state.get(f"layer{at}.0.x_pos_embed")) is not None:
                size = grid * rows.shape[1]
    classes = len(state["head.weight"]) if "head.weight" in state else 0
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
        window = math.isqrt(len(beside(state, f"{prefix}1.attn.local_relative_position_bias_table")))
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
    layer, _, kind = name.rpartition(".")
    parts = {"proj": "convolution", "norm_embed": "norm"}
    if layer not in parts:
        raise ValueError(f"0.{name} is not known from the released models")
    return {f"{to}{parts[layer]}.{kind}": t}


def of_block(to: str, norm: str, name: str, t: Tensor, state: Mapping[str, Tensor], full: str) -> dict[str, Tensor]:
    layer, _, kind = name.rpartition(".")
    if layer == "norm":
        return {f"{to}{norm}{kind}": t}
    if layer == "attn.qkv":
        parts = zip(("query", "key", "value"), t.chunk(3), strict=True)
        return {f"{to}attention.{part}.{kind}": own for part, own in parts}
    if layer in NAMES:
        return {f"{to}{NAMES[layer]}.{kind}": t}
    to = f"{to}attention."
    if kind == "local_relative_position_bias_table":
        return {f"{to}relative_bias": by_offset(t, beside(state, full))}
    if kind == "g2l_relative_position_bias":
        return {f"{to}from_global_bias": t[0], f"{to}to_global_bias": t[1]}
    if kind == "g2g_relative_position_bias":
        return {f"{to}among_global_bias": t}
    if kind == "relative_position_index":
        return {}
    raise ValueError(f"{full} is not known from the released models")


def beside(state: Mapping[str, Tensor], table: str) -> Tensor:
    """The index of a table of biases."""
    name = table.replace("local_relative_position_bias_table", "relative_position_index")
    if name not in state:
        raise ValueError(f"{name} is missing, which says what the entries of {table} are for")
    return state[name]


def by_offset(table: Tensor, index: Tensor) -> Tensor:
    """[H, offsets, offsets] from a table [entries, H] and the entry of every query of a group and key of the grown
    group, both row by row. In theirs, some offsets share an entry."""
    side, keys = (math.isqrt(n) for n in index.shape)
    reach = (keys - side) // 2
    whole = not index.is_floating_point() and (side**2, keys**2) == tuple(index.shape) and keys >= side
    if not whole or not 0 <= int(index.min()) <= int(index.max()) < len(table):
        raise ValueError(
            f"relative_position_index must be entries of a table of {len(table)} for the tokens of a square group and "
            f"of a square around it, got {tuple(index.shape)}, {index.dtype}"
        )
    y, x = (torch.arange(side * side) // side)[:, None], (torch.arange(side * side) % side)[:, None]
    down, right = torch.arange(keys * keys) // keys - reach, torch.arange(keys * keys) % keys - reach
    most = side + reach - 1
    made = table.new_zeros(table.shape[1], 2 * most + 1, 2 * most + 1)
    theirs = table[index].permute(2, 0, 1)
    made[:, y - down + most, x - right + most] = theirs
    if not torch.equal(made[:, y - down + most, x - right + most], theirs):
        raise ValueError("relative_position_index gives the same offset different entries of the table")
    return made
