"""The vision models under timm's names, where timm is installed."""

import sys
from types import ModuleType

import pytest
import torch
from pictures import CVT, VIL

from longshort.models import CvT, ViL, cvt, vil
from longshort.models import timm as registry


def test_every_preset_has_a_name():
    found = registry.names()
    assert len(found) == len(vil.PRESETS) + len(cvt.PRESETS)
    assert found["vil_ls_medium_384"] == (vil.PRESETS["medium_384"], 384)
    assert found["cvt_ls_21_448"][1] == 448 and found["cvt_13"][1] == 224


def test_models_are_made_from_timms_keywords():
    model = registry.built(VIL, num_classes=3, in_chans=4, drop_path_rate=0.2, img_size=32)
    assert isinstance(model, ViL) and model.config.size == (32, 32) and model.config.drop_path == 0.2
    assert model(torch.randn(1, 4, 32, 32)).shape == (1, 3)
    assert isinstance(registry.built(CVT, img_size=64), CvT)
    with pytest.raises(ValueError, match="the model has no depth; it has num_classes"):
        registry.built(VIL, depth=3)


def test_a_timm_that_does_not_load_is_left_alone(monkeypatch):
    broken = ModuleType("timm")
    broken.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "timm", broken)
    monkeypatch.setitem(sys.modules, "timm.models", None)
    registry.register_if_there()


def test_create_model():
    timm = pytest.importorskip("timm")
    assert set(registry.names()) <= set(timm.list_models())
    model = timm.create_model("vil_ls_medium", num_classes=10, img_size=64)
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 10)
    maps = timm.create_model("cvt_ls_13", features_only=True)
    assert [tuple(t.shape[1:]) for t in maps(torch.randn(1, 3, 64, 96))] == [(64, 16, 24), (192, 8, 12), (384, 4, 6)]
    some = timm.create_model("vil_ls_medium", features_only=True, out_indices=(1, 3))
    assert some.feature_info.reduction() == [8, 32]
    registry.register_if_there()  # twice is once
