"""The oracle vectors: where they are, and what their weights are called in our layers."""

from pathlib import Path

FILES = sorted((Path(__file__).parent / "fixtures").glob("*.npz"))
PARAMETERS = {
    "w_q": "query.weight",
    "w_k": "key.weight",
    "w_v": "value.weight",
    "w_o": "out.weight",
    "w_p": "rows.weight",
    "b_q": "query.bias",
    "b_k": "key.bias",
    "b_v": "value.bias",
    "b_o": "out.bias",
    "b_p": "rows.bias",
    "ln_local_w": "norm.local.weight",
    "ln_local_b": "norm.local.bias",
    "ln_global_w": "norm.global_.weight",
    "ln_global_b": "norm.global_.bias",
    "u": "positions.content_bias",
    "v": "positions.position_bias",
    "w_r": "positions.local.weight",
    "w_g": "positions.rows.weight",
    "b_g": "positions.rows.bias",
}


def settings_of(path, data):
    """The kind of the layer, what else the file says of it, and its constructor's keywords."""
    kind = path.stem.split("_")[0]
    meta = {name[5:]: value.item() for name, value in data.items() if name.startswith("meta.")}
    settings = dict(width=data["x"].shape[2], heads=meta["heads"], window=meta["window"], rank=meta["rank"])
    if kind == "causal":
        settings |= dict(segment=meta["segment"], positions=bool(meta["rel_pos"]))
        settings |= dict(kind="sliding" if meta["sliding"] else "segment")
    return kind, meta, settings
