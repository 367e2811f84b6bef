"""DualLN's law: rows are shorter than what they are means of, and with it both start with one length."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
from longshort.lab.cli import main
from longshort.lab.figures.norms import AT_START, WITH, WITHOUT, norm_ratios, ratios_of_encoder, with_dual_norm
from longshort.models.charlm import CharLMConfig
from longshort.models.cvt import CvTConfig, CvTStage
from longshort.models.sequence import SequenceConfig
from longshort.models.vil import ViLConfig, ViLStage
from longshort.nn.convolution import ConvLongShortAttention
from longshort.nn.spec import Full, LongShort

WIDTH, HEADS, SIZE = 64, 2, (12, 11)
TOKENS = SIZE[0] * SIZE[1]
LAYERS = {  # and of how many tokens a row is the mean
    "causal": (CausalLongShortAttention, dict(window=16, segment=12, rank=1), 12),
    "causal, rotary": (CausalLongShortAttention, dict(window=16, segment=12, rank=2, positions="rotary"), 12),
    "sequence": (LongShortAttention, dict(window=16, rank=8), TOKENS),
    "sequence, rotary": (LongShortAttention, dict(window=16, rank=8, rotary=True), TOKENS),
    "grid": (GridLongShortAttention, dict(window=4, rank=8), TOKENS),
    "convolution": (ConvLongShortAttention, dict(window=4, rank=8), TOKENS),
}
LOCAL = LongShort(window=4, rank=8)
TEXT_MODEL = CharLMConfig(layers=3, width=WIDTH, heads=HEADS, feedforward=64, window=16, rank=(1, 0, 1))
ENCODER = SequenceConfig(LOCAL, classes=2, layers=2, width=WIDTH, heads=HEADS, feedforward=64)
CVT = CvTConfig(
    (CvTStage(WIDTH, HEADS, 1, LOCAL, kernel=7, stride=4), CvTStage(WIDTH, HEADS, 2, LOCAL)),
    classes=5,
)
VIL = ViLConfig(
    (ViLStage(WIDTH, HEADS, 2, LOCAL, stride=4, global_tokens=1), ViLStage(WIDTH, HEADS, 1, Full(), global_tokens=1)),
    size=(48, 48),
    classes=5,
)
MODELS = {  # and the layers that have rows
    "language model": (TEXT_MODEL, [1, 3]),
    "encoder": (ENCODER, [1, 2]),
    "CvT": (CVT, [1, 2, 3]),
    "ViL": (VIL, [1, 2]),
}


class Alone(nn.Module):
    """A layer that is a model."""

    def __init__(self, name, *, dual_norm, **changes):
        super().__init__()
        kind, settings, _ = LAYERS[name]
        torch.manual_seed(0)
        self.layer = kind(WIDTH, HEADS, dual_norm=dual_norm, **settings, **changes)
        self.rest = (SIZE,) if issubclass(kind, GridLongShortAttention) else ()

    def forward(self, x):
        return self.layer(x, *self.rest)


def tokens(count=TOKENS, seed=0):
    return torch.randn(2, count, WIDTH, generator=torch.Generator().manual_seed(seed))


def model_and_input(config):
    torch.manual_seed(0)
    if isinstance(config, CvTConfig | ViLConfig):
        return config.build(), torch.randn(2, 3, 48, 48)
    return config.build(), torch.randint(1, 256, (2, 96))


@pytest.mark.parametrize("name", LAYERS)
def test_of_tokens_that_differ_rows_are_short_without_dual_norm_and_as_long_with_it(name):
    (without,) = norm_ratios(Alone(name, dual_norm=False), tokens())
    (both,) = norm_ratios(Alone(name, dual_norm=True), tokens())
    assert min(without.key, without.value) > 2
    assert [both.key, both.value] == pytest.approx([1, 1], abs=0.05)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "convolution"])  # whose tokens are like neighbours
def test_a_mean_of_m_independent_keys_is_shorter_by_the_root_of_m(name):
    model = Alone(name, dual_norm=False)
    for p in model.layer.rows.parameters():
        nn.init.zeros_(p)  # all tokens weigh the same
    for linear in (model.layer.key, model.layer.value):
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    (found,) = norm_ratios(model, tokens())
    assert [found.key, found.value] == pytest.approx([LAYERS[name][2] ** 0.5] * 2, rel=0.15)


def test_tokens_that_are_all_alike_have_rows_as_long_as_themselves():
    (found,) = norm_ratios(Alone("sequence", dual_norm=False), tokens(1).expand(-1, 40, -1))
    assert [found.key, found.value] == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("name", ["sequence", "grid", "convolution"])
def test_global_tokens_do_not_count(name):
    model = Alone(name, dual_norm=False, global_tokens=2)
    x = tokens(TOKENS + 2)
    found = norm_ratios(model, x)
    x[:, :2] *= 100
    assert norm_ratios(model, x) == found


def test_norms_are_means_over_heads():
    model = Alone("sequence", dual_norm=False)
    x, layer = tokens(), model.layer
    (found,) = norm_ratios(model, x)
    with torch.no_grad():
        k = layer.split(layer.key(x))
        rows, _ = layer.distil(x, k, k, None)
    assert found.key == pytest.approx((k.norm(dim=3).mean() / rows.norm(dim=3).mean()).item(), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_models_at_initialisation(name):
    config, layers = MODELS[name]
    model, given = model_and_input(config)
    before = model.eval()(given)
    measure = ratios_of_encoder if name == "encoder" else norm_ratios
    both, without = measure(model, given), measure(with_dual_norm(model, False), given)
    assert [r.layer for r in both] == [r.layer for r in without] == layers
    assert all(abs(r - 1) < 0.05 for ratio in both for r in (ratio.key, ratio.value))
    assert all(r > 1 for ratio in without for r in (ratio.key, ratio.value))
    assert min(without[0].key, without[0].value) > 2  # tokens of deeper layers have more in common
    assert torch.equal(first(model(given)), first(before))
    assert not any(m._forward_hooks for m in model.modules())


def first(out):
    return out[0] if isinstance(out, tuple) else out


def test_a_model_that_dual_norm_is_taken_out_of_is_one_made_without_it():
    made, given = model_and_input(replace(TEXT_MODEL, dual_norm=False))
    taken, _ = model_and_input(TEXT_MODEL)
    assert norm_ratios(with_dual_norm(taken, False), given) == norm_ratios(made, given)
    assert norm_ratios(with_dual_norm(made, True), given) == norm_ratios(taken, given)


def test_padding_is_refused():
    with pytest.raises(ValueError, match=r"padding \(token 0\)"):
        ratios_of_encoder(ENCODER.build(), torch.tensor([[1, 2, 0]]))


def test_without_models_three_are_made(tmp_path, monkeypatch, capsys):
    for kind, config in {"language": TEXT_MODEL, "encoder": ENCODER, "vision": CVT}.items():
        monkeypatch.setitem(AT_START, kind, (f"the {kind} model", config))
    monkeypatch.setattr("longshort.lab.figures.norms.SIDE", 48)
    (tmp_path / "text.txt").write_bytes(bytes(range(32, 127)) * 20)
    for out in ("one.png", "other"):
        assert main(["analyse", "norms", "--prompt", str(tmp_path / "text.txt"), "--out", str(tmp_path / out)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"norms: {tmp_path / name}.png" for name in ("one", "other")]
    assert (tmp_path / "other.png").read_bytes().startswith(b"\x89PNG")
    one, other = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "other.json"))
    assert one == other  # made from one seed
    assert [panel["model"] for panel in one["panels"]] == [f"the {k} model" for k in ("language", "encoder", "vision")]
    assert {panel["weights"] for panel in one["panels"]} == {"at initialisation, seed 0"}


def test_from_the_command_line(tmp_path, figures, capsys):
    for name, config in {"text-model": TEXT_MODEL, "encoder": ENCODER, "cvt": CVT, "vil": VIL}.items():
        config.build().save_pretrained(tmp_path / name)
    (tmp_path / "text.txt").write_bytes(bytes(range(32, 127)) * 20)
    out = tmp_path / "norms.png"
    names = [str(tmp_path / name) for name in ("vil", "encoder", "text-model", "cvt")]
    prompt = ["--prompt", str(tmp_path / "text.txt")]
    assert main(["analyse", "norms", *names, *prompt, "--out", str(out)]) == 0
    found = json.loads(out.with_suffix(".json").read_text())
    assert out.exists() and found["seed"] == 0
    assert [panel["model"] for panel in found["panels"]] == ["text-model", "encoder", "vil", "cvt"]
    assert [len(panel[WITHOUT]) for panel in found["panels"]] == [2, 2, 2, 3]
    assert found["panels"][0]["input"] == "text.txt, 2 × 950 characters"
    (figure,) = figures
    lines = figure.axes[0].get_lines()[1:]  # the first is at 1
    labels = [f"{what}, {how}" for how in (WITH, WITHOUT) for what in ("keys", "values")]
    assert [line.get_label() for line in lines] == labels
    assert lines[2].get_ydata().tolist() == [each["key"] for each in found["panels"][0][WITHOUT]]
    (tmp_path / "text.txt").write_bytes(b"too short")
    assert main(["analyse", "norms", *names, *prompt]) == 1
    assert "text-model: no layer has rows for text.txt, 2 × 4 characters" in capsys.readouterr().err
