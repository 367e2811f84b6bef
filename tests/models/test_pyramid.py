"""Laws of the vision models: any size of image, a pyramid of maps, heads, less memory for the same, saved, loaded."""

from dataclasses import replace

import pytest
import torch
from pictures import CONFIGS, CVT, VIL, images, model_of
from torch import nn

from longshort.models.cvt import CvT
from longshort.models.pyramid import shares
from longshort.models.vil import ViL
from longshort.nn.blocks import DropPath

each = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
close = dict(atol=1e-12, rtol=0)


@each
@pytest.mark.parametrize("size", [(48, 64), (33, 70), (5, 3), (1, 1)])
def test_any_size_and_a_batch_is_its_images(config, size):
    model, x = model_of(config), images(*size)
    scores = model(x)
    assert scores.shape == (2, 5) and scores.isfinite().all()
    torch.testing.assert_close(scores, torch.cat([model(x[:1]), model(x[1:])]), **close)


@each
@pytest.mark.parametrize("size", [(48, 64), (33, 70)])
def test_maps_are_as_large_as_their_strides_say(config, size):
    model = model_of(config)
    maps = model.forward_pyramid(images(*size))
    assert model.strides == (4, 8, 16, 32)[: len(config.stages)]
    for made, width, stride in zip(maps, model.widths, model.strides, strict=True):
        assert made.shape == (2, width, -(-size[0] // stride), -(-size[1] // stride))


@each
def test_no_pixel_is_lost_and_every_weight_matters(config):
    model, x = model_of(config), images(41, 35).requires_grad_()
    (model(x).square().sum() + model.forward_features(x).square().sum()).backward()
    assert (x.grad.abs().sum(dim=1) > 0).all()
    unused = [name for name, p in model.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    dropped = {f"stages.2.blocks.0.attention.{name}_global_bias" for name in ("from", "among")}  # with the token itself
    assert set(unused) <= dropped


@each
def test_scores_are_features_and_a_head(config):
    model, x = model_of(config), images(48, 64)
    features = model.forward_features(x)
    torch.testing.assert_close(model(x), model.forward_head(features), **close)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    torch.testing.assert_close(model(x), model.head(pooled), **close)
    last = model.norm(model.forward_pyramid(x)[-1].flatten(2).mT)
    torch.testing.assert_close(features[:, model.last.global_tokens :], last, **close)
    model.reset_classifier(7)
    assert model(x).shape == (2, 7) and model.num_classes == 7 and model.get_classifier() is model.head
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), pooled, **close)


@each
def test_intermediates_as_timm_asks_for_them(config):
    model, x = model_of(config), images(20, 30)
    maps = model.forward_pyramid(x)
    features, found = model.forward_intermediates(x)
    torch.testing.assert_close((features, found), (model.forward_features(x), maps), **close)
    last = model.forward_intermediates(x, indices=2, intermediates_only=True)
    torch.testing.assert_close(last, maps[-2:], **close)
    chosen = model.forward_intermediates(x, indices=[-1, 0], intermediates_only=True)
    torch.testing.assert_close(chosen, [maps[-1], maps[0]], **close)
    assert [info["num_chs"] for info in model.feature_info] == [m.shape[1] for m in maps]
    with pytest.raises(ValueError, match="indices must be stages"):
        model.forward_intermediates(x, indices=[9])


@each
def test_checkpointing_changes_memory_alone(config):
    config, x = replace(config, drop_path=0.4), images(33, 40, batch=4)

    def train(checkpointed):
        model = model_of(config).train()
        model.set_grad_checkpointing(checkpointed)
        torch.manual_seed(1)
        model(x).square().sum().backward()
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        averages = [t for m in norms for t in (m.running_mean, m.running_var)]
        assert all(m.momentum == 0.1 for m in norms)
        return [p.grad for p in model.parameters()] + averages

    torch.testing.assert_close(train(True), train(False), **close)


@each
def test_saved_and_loaded(config, tmp_path):
    model, x = model_of(config), images(20, 30)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).double().eval()
    assert again.config == config
    torch.testing.assert_close(
        again(x), model(x), atol=1e-4, rtol=1e-4
    )  # the file has float32's precision only on load


@each
def test_a_model_of_the_same_config_has_the_same_weights(config):
    model, x = model_of(config), images(33, 70)
    torch.testing.assert_close(model.adapted(config)(x), model(x), **close)


def test_tables_of_another_size_are_those_that_the_model_made_up_on_the_way():
    model = model_of(VIL)
    larger = model.adapted(replace(VIL, size=(100, 90)))
    for x in (images(100, 90), images(48, 64)):
        assert larger(x).shape == (2, 5)
    torch.testing.assert_close(larger(images(100, 90)), model(images(100, 90)), **close)
    absolute = model_of(CONFIGS["ViL, absolute"])
    wider = absolute.adapted(replace(absolute.config, size=(96, 64)))
    torch.testing.assert_close(wider(images(96, 64)), absolute(images(96, 64)), **close)


def test_a_new_head_and_another_window_for_the_same_weights():
    model = model_of(VIL)
    local = replace(VIL.stages[0].attention, window=5)
    stages = tuple(replace(s, attention=local) if i < 2 else s for i, s in enumerate(VIL.stages))
    made = model.adapted(replace(VIL, stages=stages, classes=9))
    assert made(images(48, 64)).shape == (2, 9)
    torch.testing.assert_close(made.state_dict()["norm.weight"], model.norm.weight.data, **close)
    with pytest.raises(ValueError, match="another architecture"):
        model.adapted(replace(VIL, stages=(replace(VIL.stages[0], width=10), *VIL.stages[1:])))


def test_rates_grow_from_block_to_block():
    rates = shares(0.3, (1, 2, 1))
    assert [len(stage) for stage in rates] == [1, 2, 1]
    assert [rate for stage in rates for rate in stage] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_drop_path_leaves_out_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    layer, x = DropPath(0.25), torch.ones(20_000, 1, 3)
    made = layer(x)
    kept = made[:, 0, 0] > 0
    assert torch.equal(made, torch.where(kept[:, None, None], 1 / 0.75, 0.0).expand_as(x))
    assert made.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(layer.eval()(x), x) and torch.equal(DropPath(0.0)(x), x)
    with pytest.raises(ValueError, match="drop_path must be"):
        DropPath(1.0)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 4, 32, 32), (1, 3, 0, 32)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match="images must be"):
        model_of(CVT)(torch.zeros(shape, dtype=torch.double))


def test_presets_are_known_by_name():
    for kind in (ViL, CvT):
        with pytest.raises(ValueError, match="there is no preset 'huge'; there are "):
            kind.preset("huge")
        with pytest.raises(ValueError, match=r"the model has no num_classes; it has stages,.* classes,"):
            kind.preset("medium" if kind is ViL else "13", num_classes=3)
    assert ViL.preset("medium", classes=3, drop_path=0.1).num_classes == 3


@pytest.mark.parametrize("classes", [7, 0])
@pytest.mark.parametrize("config", [VIL, CVT], ids=["ViL", "CvT"])
def test_a_new_head_is_saved_and_read_back(config, classes, tmp_path):
    model, x = model_of(config).float(), images(32, 32).float()
    model.reset_classifier(classes)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert again.config == replace(config, classes=classes)
    torch.testing.assert_close(again(x), model(x))
    with pytest.raises(ValueError, match=r"expected (CvT|ViL)Config, got (CvT|ViL)Config"):
        (CvT if isinstance(model, ViL) else ViL).from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(VIL, stages=()), "at least one"),
        (lambda: replace(VIL, size=(0, 3)), "size must be"),
        (lambda: replace(VIL.stages[0], width=0), "width must be"),
        (lambda: replace(VIL.stages[0], positions="none"), "positions must be"),
        (lambda: replace(CVT.stages[0], kernel=3), "smaller than stride"),
        (lambda: replace(CVT, stages=()), "at least one"),
        (lambda: model_of(VIL).reset_classifier(-1), "classes must not"),
        (lambda: replace(VIL, stages=CVT.stages), "stages must be ViLStage, got CvTStage"),
        (lambda: replace(CVT, stages=VIL.stages), "stages must be CvTStage, got ViLStage"),
        (lambda: model_of(CVT)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)), "bytes of them normalised"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
