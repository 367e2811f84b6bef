"""Recipes of ImageNet: the released settings, and each can be made, written down and read back."""

import inspect
import json
from pathlib import Path

import pytest

from longshort.lab.recipes import RECIPES, imagenet
from longshort.lab.tasks.augment import Augment
from longshort.lab.train import AdamW
from longshort.models import cvt, vil
from longshort.serial import as_json, from_json

NAMES = [name for name in RECIPES if name.startswith("imagenet.")]
DATA = Path("somewhere")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_survives_its_record_and_says_what_it_needs(name):
    run = RECIPES[name](data=DATA, **({"classes": 5} if name == "imagenet.pictures" else {}))
    assert from_json(json.loads(json.dumps(as_json(run)))) == run
    text = inspect.getdoc(RECIPES[name])
    assert f"longshort train {name} " in text and "Ours: not yet run" in " ".join(text.split())


def test_pictures_of_ones_own():
    run = imagenet.pictures(DATA, 5, model="vil_ls_medium", side=160, batch=32)
    assert run.model.classes == run.task.classes == 5 and run.model.size == (160, 160) and run.task.side == 160
    assert (run.steps, run.task.images, run.schedule.warmup) == (10_000, 32, 833)
    assert imagenet.pictures(DATA, 5, model="cvt_ls_21").model.stages == cvt.PRESETS["ls_21"].stages


def test_the_released_settings():
    run = imagenet.vil_ls_medium(DATA)
    assert run.optimizer == AdamW(lr=8e-4, weight_decay=0.1) and run.model.drop_path == 0.3
    assert run.steps == 300 * (1_281_167 // 1024) and run.schedule.warmup == 5 * (1_281_167 // 1024)
    assert run.schedule.factor(run.steps, run.steps) * 8e-4 == pytest.approx(1e-6)
    assert run.task.augment == Augment() and run.task.smoothing == 0.1 and run.task.images == 1024
    assert imagenet.vil_ls_base(DATA).model.drop_path == 0.5
    large = imagenet.vil_ls_medium_384(DATA)
    assert large.model.drop_path == 0.2 and large.task.side == 384 and large.model.size == (384, 384)
    assert large.model.stages == vil.PRESETS["medium_384"].stages and large.task.crop == 1.0


def test_the_papers_rate_for_cvt_and_windows_by_size():
    assert imagenet.cvt_ls_13(DATA).optimizer.lr == 5e-4
    run = imagenet.cvt_ls_21(DATA, side=448)
    assert run.model.stages == cvt.PRESETS["ls_21_448"].stages and run.task.side == 448
    assert run.name == "imagenet.cvt_ls_21_448"


def test_imagenette_with_and_without_dualln():
    with_it, without, full = (
        imagenet.imagenette(DATA, model=name) for name in ("cvt_ls_13", "cvt_ls_13_plain", "cvt_13")
    )
    assert [s.attention.dual_norm for s in with_it.model.stages] == [True] * 3
    assert [s.attention.dual_norm for s in without.model.stages] == [False] * 3
    assert full.model.stages == cvt.PRESETS["13"].stages and full.model.classes == 10
    assert len({run.name for run in (with_it, without, full)}) == 3
    short = imagenet.imagenette(DATA, epochs=10, rate=2e-4)
    assert short.steps == 10 * 73 and short.schedule.warmup == 10 * 73 // 12 and short.optimizer.lr == 2e-4
