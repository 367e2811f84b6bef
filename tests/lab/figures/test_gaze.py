"""Where a token looks: shares make up the whole, the window is the geometry's, rows are the projection's."""

import json

import numpy as np
import pytest
import torch
from pictures import CONFIGS, CVT, VIL, images, model_of
from shapes import as_folder, encoded, files, picture

from longshort import ops
from longshort.geometry import Tiles
from longshort.lab.cli import main
from longshort.lab.figures.gaze import draw_gaze, draw_strip, looks_at, looks_back
from longshort.lab.figures.looks import projection, watching
from longshort.lab.figures.similarity import draw_similarities, mean_cosine, similarities
from longshort.models.charlm import CharLM, CharLMConfig

TINY = CharLMConfig(layers=2, width=16, heads=2, feedforward=32, window=6, segment=4, rank=2)
TEXT = bytes(range(97, 97 + 23))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_all_attention_is_found_again(config):
    model = model_of(config).float()
    known = dict(ops.IMPLEMENTATIONS)
    found = looks_at(model, images(48, 64)[0].float(), (20, 30))
    assert len(found) == len(model.parts) and known == ops.IMPLEMENTATIONS
    for look, size, place in found:
        assert look.window.shape == look.rows.shape == (size[0] * size[1],)
        assert (look.window.sum() + look.rows.sum()).item() + look.others == pytest.approx(1.0, abs=1e-5)
        assert 0 <= place[0] < size[0] and 0 <= place[1] < size[1]


def test_the_window_is_who_it_sees_and_rows_reach_everyone():
    model = model_of(CVT).float()
    (look, size, place), *_ = looks_at(model, images(48, 64)[0].float(), (20, 30))
    tiles, i = Tiles(3, *size), place[0] * size[1] + place[1]
    sees = [tiles.sees(i, j) for j in range(size[0] * size[1])]
    assert ((look.window > 0).tolist()) == sees and (look.rows > 0).all()
    assert place == (20 // 4, 30 // 4)


def test_what_is_seen_is_what_the_layer_computes():
    """Weights times values are the layer's output, before the rows' norm where there is none."""
    layer = model_of(CVT).stages[0].blocks[0].attention.float()
    x = torch.randn(1, 30, 8)
    with watching(layer) as seen, torch.no_grad():
        layer(x, (5, 6))
    given = seen[layer]["operation"]
    assert given["q"].shape[2] == 30 and seen[layer]["rows"].shape == (1, 30, 2)
    weights = projection(layer, seen[layer]["rows"][0], 30)
    torch.testing.assert_close(weights.sum(2), torch.ones(1, 2))


def test_a_character_looks_back_only():
    torch.manual_seed(0)
    model = CharLM(TINY)
    looks = looks_back(model, TEXT, 17)
    assert len(looks) == 2
    for look in looks:
        assert look.window.shape == (18,) and (look.window[:12] == 0).all() and (look.window[12:] > 0).all()
        assert (look.rows[:16] > 0).all() and (look.rows[16:] == 0).all()  # four finished segments
        assert (look.window.sum() + look.rows.sum()).item() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match="0 to 22, got 23"):
        looks_back(model, TEXT, 23)


def test_a_pixel_outside_is_refused():
    with pytest.raises(ValueError, match=r"which is 48 × 64, got \(48, 0\)"):
        looks_at(model_of(VIL).float(), images(48, 64)[0].float(), (48, 0))


def test_figures_say_what_they_show(tmp_path, figures):
    looks = looks_at(model_of(VIL).float(), images(48, 64)[0].float(), (20, 30))
    draw_gaze(looks, np.zeros((48, 64, 3), np.uint8), tmp_path / "gaze.png", title="Where the patch looks")
    titles = [axes.get_title(loc="left") for axes in figures[-1].axes]
    assert titles[0] == "stage 1, block 1: the patch" and "% to its window" in titles[1] and "all patches" in titles[-3]
    draw_strip(looks_back(CharLM(TINY), TEXT, 22), TEXT, tmp_path / "strip.png", title="Where it looks")
    assert "% of attention through its window" in figures[-1].axes[0].get_title(loc="left")
    assert [t.get_text() for t in figures[-1].axes[0].texts] == list(TEXT.decode())


def test_cosines_by_hand():
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], [[1.0, 1.0]] * 3])
    torch.testing.assert_close(mean_cosine(x), torch.tensor([1 / 3, 1.0]))  # of three pairs, one is alike
    assert mean_cosine(x[:, :1]).tolist() == [1.0, 1.0]


def test_similarities_block_by_block(tmp_path, figures):
    model = model_of(VIL).float()
    x = images(48, 64, batch=4).float()
    found = similarities(model, [x[:3], x[3:]])
    assert len(found) == 5 and found == pytest.approx(similarities(model, [x]), abs=1e-5)
    last = model.levels(x)[-1][0]
    assert found[-1] == pytest.approx(mean_cosine(last).mean().item(), abs=1e-5)
    draw_similarities({"one": found, "other": found[:3]}, tmp_path / "s.png", images=4)
    assert [t.get_text() for t in figures[-1].axes[0].get_legend().get_texts()] == ["one", "other"]
    with pytest.raises(ValueError, match="no image"):
        similarities(model, [])


def test_of_full_attention_there_are_no_rows_to_draw(tmp_path, figures):
    image = images(48, 64)[0].float()
    for name, expected in (
        ("CvT, full", ["100 % to all patches", "", ""]),
        ("CvT", ["its window", "the rows", "both"]),
    ):
        looks = looks_at(model_of(CONFIGS[name]).float(), image, (20, 30))
        draw_gaze(looks, image.permute(1, 2, 0).clamp(0, 1).numpy(), tmp_path / "x.png", title="t")
        titles = [axes.get_title(loc="left") for axes in figures[-1].axes[1:4]]
        assert all(text.endswith(end) for text, end in zip(titles, expected, strict=True))
        assert [bool(axes.images) for axes in figures[-1].axes[1:4]] == [bool(end) for end in expected]


def test_from_the_command_line(tmp_path, capsys):
    model_of(CVT).float().save_pretrained(tmp_path / "cvt")
    CharLM(TINY).save_pretrained(tmp_path / "text-model")
    (tmp_path / "image.png").write_bytes(encoded(picture("red", 0, (60, 50))))
    (tmp_path / "text.txt").write_bytes(TEXT * 3)
    out = str(tmp_path / "look.png")
    assert main(["analyse", "look", str(tmp_path / "cvt"), "--image", str(tmp_path / "image.png"), "--out", out]) == 0
    arguments = [str(tmp_path / "text-model"), "--prompt", str(tmp_path / "text.txt"), "--at", "40", "--out", out]
    assert main(["analyse", "look", *arguments]) == 0
    as_folder(tmp_path / "data", files())
    sim = tmp_path / "sim.png"
    arguments = [str(tmp_path / "cvt"), "--data", str(tmp_path / "data" / "val"), "--count", "4", "--out", str(sim)]
    assert main(["analyse", "similarity", *arguments]) == 0
    assert len(json.loads(sim.with_suffix(".json").read_text())["cvt, 224²"]) == 4 and sim.exists()
    model_of(CVT, seed=1).float().save_pretrained(tmp_path / "other" / "cvt")
    assert main(["analyse", "similarity", str(tmp_path / "other" / "cvt"), *arguments]) == 0
    both = json.loads(sim.with_suffix(".json").read_text())
    assert list(both) == [f"{tmp_path / name}, 224²" for name in ("other/cvt", "cvt")]
    capsys.readouterr()
    as_folder(tmp_path / "broken", {"a/1.png": b""})
    for arguments, words in (
        (["similarity", str(tmp_path / "cvt"), "--data", str(tmp_path / "broken")], "none of 1 pictures can be read"),
        (["look", str(tmp_path / "cvt")], "give it a picture with --image"),
        (["look"], "give one model"),
        (["look", str(tmp_path / "cvt"), "--image", str(tmp_path / "text.txt")], "is no picture"),
        (["look", str(tmp_path / "cvt"), "--image", str(tmp_path / "image.png"), "--at", "3"], "must be a pixel"),
        (["look", str(tmp_path / "cvt"), "--image", str(tmp_path / "image.png"), "--at", "3", "3"], "is not in what"),
        (["similarity"], "give vision models"),
        (["similarity", str(tmp_path / "text-model")], "text-model is a language model"),
        (["similarity", str(tmp_path / "cvt")], "name pictures with --data"),
    ):
        assert main(["analyse", *arguments]) == 1
        assert words in capsys.readouterr().err
