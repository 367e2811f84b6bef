"""ViL-LS: what its authors released loads exactly, wrapped or bare, described or not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import VIL, images, model_of

from longshort.models.vil import PRESETS, ViL
from longshort.models.vil_released import by_offset, config_of, stages_from
from longshort.nn.spec import Full, LongShort

FILE = Path(__file__).parents[1] / "fixtures" / "released" / "vil_ls_released_tiny.npz"
MEDIUM = (
    "l1,h3,d96,n1,s1,g1,p4,f7,a0,r8_l2,h3,d192,n4,s1,g1,p2,f7,a0,r8_"
    "l3,h6,d384,n16,s0,g1,p2,f7,a0,r8_l4,h12,d768,n1,s0,g0,p2,f7,a0,r8"
)


@pytest.fixture(scope="module")
def data():
    return dict(np.load(FILE))


@pytest.fixture(scope="module")
def state(data):
    return {name.removeprefix("state."): torch.from_numpy(t) for name, t in data.items() if name.startswith("state.")}


def check(model, data):
    with torch.no_grad():
        found = model(torch.from_numpy(data["image"]))
    torch.testing.assert_close(found, torch.from_numpy(data["logits"]), atol=1e-5, rtol=0)


def test_the_released_weights_give_the_released_scores(data, state):
    check(ViL.from_released(state), data)
    check(ViL.from_released(state, arch=str(data["arch"]), size=int(data["size"])), data)


@pytest.mark.parametrize("wrap", ["bare", "net", "model", "state_dict", "module", "twice"])
def test_files_with_and_without_wrapping(wrap, data, state, tmp_path):
    inside = {f"module.{name}": t for name, t in state.items()} if wrap in ("net", "twice") else state
    inside = {"state_dict": inside} if wrap == "twice" else inside
    whole = inside if wrap == "bare" else {{"twice": "net"}.get(wrap, wrap): inside, "arch": "msvit", "epoch": 7}
    torch.save(whole, tmp_path / "model_best.pth")
    check(ViL.from_released(tmp_path / "model_best.pth"), data)


def test_the_config_is_found_from_the_weights(data, state):
    config = config_of(state)
    assert config.stages == stages_from(str(data["arch"])) and config.size == (64, 64)
    assert config.classes == 10


def test_the_presets_are_the_released_layouts():
    assert PRESETS["medium"].stages == stages_from(MEDIUM)
    assert PRESETS["base"].stages == stages_from(MEDIUM.replace("n4", "n8").replace("n16", "n24"))
    assert PRESETS["medium_384"].stages == stages_from(MEDIUM.replace("f7", "f8"))


def test_as_in_theirs_all_stages_after_a_full_one_are_full():
    first, second, third = stages_from("s1,f2,r1_s0_s1,f2,r1")
    assert first.attention == LongShort(2, 1) and second.attention == third.attention == Full()
    assert first.positions == "absolute" and (first.heads, first.width, first.stride) == (3, 192, 2)


def test_absolute_positions_load(data, state):
    """Zeros, which change nothing: places are tried by the next test."""
    arch = str(data["arch"]).replace("a0", "a1")
    kept = {name: t for name, t in state.items() if "relative_position" not in name}
    grid, tables = 64, {}
    for at, stage in enumerate(stages_from(arch), start=1):
        grid //= stage.stride
        tables[f"layer{at}.0.cls_pos_embed"] = torch.zeros(1, stage.global_tokens, stage.width)
        for axis in "xy":
            tables[f"layer{at}.0.{axis}_pos_embed"] = torch.zeros(1, grid, stage.width // 2)
    model = ViL.from_released({**kept, **tables}, arch=arch)
    assert model.config.size == (64, 64) and {s.positions for s in model.config.stages} == {"absolute"}
    unbiased = ViL.from_released(state)
    for name, p in unbiased.named_parameters():
        if name.endswith(("relative_bias", "global_bias")):
            p.data.zero_()
    x = torch.from_numpy(data["image"])
    torch.testing.assert_close(model(x), unbiased(x))


def test_absolute_positions_are_of_rows_and_of_columns():
    stages = tuple(replace(s, positions="absolute") for s in VIL.stages)
    places = model_of(replace(VIL, stages=stages)).stages[0].embedding.positions
    made = places((12, 16))[1:].unflatten(0, (12, 16))
    assert torch.equal(made[3, 5], torch.cat([places.rows.weight[3], places.columns.weight[5]]))
    assert torch.equal(places((12, 16))[0], places.global_tokens.weight[0])


def test_rank_0_is_without_a_projection(state):
    dropped = {n: t for n, t in state.items() if "to_dynamic_projection" not in n}
    model = ViL.from_released(dropped)
    assert {s.attention.rank for s in model.config.stages[:2]} == {0}


def test_offsets_that_share_an_entry():
    """Theirs multiplies dy by the side of the grown group: with window 2, by 4, where 5 offsets are."""
    index = torch.tensor([[4 * (y - j + 2) + x - i + 2 for j in range(-1, 3) for i in range(-1, 3)]
                          for y in range(2) for x in range(2)])  # fmt: skip
    table = torch.arange(21.0)[:, None]
    made = by_offset(table, index)
    assert made.shape == (1, 5, 5)
    assert torch.equal(made[0], torch.arange(5.0)[:, None] * 4 + torch.arange(5.0))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "not among them, but nothing"),
        ({"conv1.weight": torch.zeros(1)}, "not among them, but conv1.weight"),
        ({"net": 3}, "state dict, wrapped or bare, got int"),
        (None, "must be a file or a state dict, wrapped or bare, got NoneType"),
        ({3: torch.zeros(1)}, "not among them, but 3"),
    ],
)
def test_other_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        ViL.from_released(weights)


def test_a_file_that_holds_code_is_refused(tmp_path):
    torch.save({"net": {}, "scheduler": Path("anything")}, tmp_path / "model.pth")
    with pytest.raises(ValueError, match="more than tensors"):
        ViL.from_released(tmp_path / "model.pth")


@pytest.mark.parametrize("kept", [0, 100, 20_000])
def test_a_file_that_was_cut_off_is_told_in_one_line(kept, state, tmp_path):
    torch.save(state, tmp_path / "whole.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"cut\.pth is no file of torch\.save, or it is cut off or damaged \(\w+\)$"):
        ViL.from_released(tmp_path / "cut.pth")


@pytest.mark.parametrize("content", [b"hello world\n" * 20, b"\x80\x02}q\x00.", b"PK\x03\x04"])
def test_a_file_of_something_else_is_told_in_one_line(content, tmp_path):
    (tmp_path / "notes.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*(is cut off or damaged|not among them)[^\n]*$"):
        ViL.from_released(tmp_path / "notes.pth")
    with pytest.raises(FileNotFoundError):
        ViL.from_released(tmp_path / "nowhere.pth")


TABLE, INDEX = "layer1.1.attn.local_relative_position_bias_table", "layer1.1.attn.relative_position_index"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer1.1.norm.weight": None}, r"stages\.0\.blocks\.0\.attention_norm\.weight is missing \(1 such\)$"),
        ({INDEX: None}, rf"^{INDEX} is missing"),
        ({"extra.weight": torch.zeros(2)}, r"^extra\.weight is not known"),
        ({"layer1.0.extra.weight": torch.zeros(2)}, r"extra\.weight is not known"),
        ({"layer1.1.extra": torch.zeros(2)}, r"extra is not known"),
        ({"layer1.x.norm.weight": torch.zeros(2)}, r"^layer1\.x\.norm\.weight is not known"),
        ({"layer1.0.proj.weight": torch.zeros(16, 3, 4)}, r"^layer1\.0\.proj\.weight must have 4 axes"),
        (
            {"layer2.0.proj.bias": torch.zeros(3)},
            r"convolution\.bias is \(3,\) and would have to be \(\d+,\) \(1 such\)$",
        ),
        ({"layer1.0.cls_token": torch.zeros(16)}, r"^layer1\.0\.cls_token must have 3 axes"),
        ({"head.weight": torch.zeros(10)}, r"^head\.weight must have 2 axes"),
        ({TABLE: torch.zeros(21, 0)}, rf"^{TABLE} must have 2 axes, none of them empty"),
        ({TABLE: torch.zeros(2, 1)}, "must be entries of a table of 2 "),
        ({"epoch": 7}, "^epoch must be a tensor, got int$"),
    ],
)
def test_weights_that_do_not_fit_are_told_in_one_line(changes, message, state):
    changed = {name: t for name, t in {**state, **changes}.items() if t is not None}
    with pytest.raises(ValueError, match=message) as told:
        ViL.from_released(changed)
    assert "\n" not in str(told.value)


def test_an_index_that_is_of_no_offsets_is_refused(state):
    index = state[INDEX].clone()
    index[0, 0] = index[0, 1]
    with pytest.raises(ValueError, match="the same offset different entries"):
        ViL.from_released({**state, INDEX: index})


def test_weights_may_be_arrays_and_have_no_head(data, state):
    check(ViL.from_released({name: t.numpy() for name, t in state.items()}), data)
    headless = ViL.from_released({name: t for name, t in state.items() if not name.startswith("head.")})
    assert headless.num_classes == 0
    with torch.no_grad():
        features, whole = (model(torch.from_numpy(data["image"])) for model in (headless, ViL.from_released(state)))
    torch.testing.assert_close(features @ state["head.weight"].T + state["head.bias"], whole)


@pytest.mark.parametrize("arch", ["", "h3,x4", "h3,,d4", "h"])
def test_an_arch_that_is_none_is_refused(arch, state):
    with pytest.raises(ValueError, match="arch has a stage"):
        ViL.from_released(state, arch=arch)


def test_an_arch_of_other_stages_is_refused(data, state):
    with pytest.raises(ValueError, match="arch has 1 stages, and the weights are of 4"):
        ViL.from_released(state, arch=str(data["arch"]).split("_")[0])


def test_a_size_counts_for_the_tables():
    model = model_of(replace(VIL, size=64))
    assert model.config.size == (64, 64)
    assert model.stages[2].blocks[0].attention.relative_bias.shape == (4, 7, 7)
    assert model(images(64, 64)).shape == (2, 5)
