"""What earlier versions wrote is read: runs go on and are evaluated as they were, saved models give the same scores."""

import io
import json
import logging
from dataclasses import replace

import pytest
import torch
from earlier_runs import earlier
from rich.console import Console
from safetensors.torch import load_file

from longshort.lab.cli import main
from longshort.lab.report.jobs import evaluate_run
from longshort.lab.runs.folder import RunFolder
from longshort.lab.train import train
from longshort.lab.trained import Trained
from longshort.models import CharLM, CvT, PairClassifier, SequenceClassifier, ViL
from longshort.models.sequence import MaskedModel

RUNS = ("characters", "masked", "classifier", "pairs", "pictures", "masked_text", "reviews")
TOKENS = torch.arange(1, 25)[None]
IMAGE = torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16)
SAVED = {
    "characters": (CharLM, lambda model: model(TOKENS)[0]),
    "classifier": (SequenceClassifier, lambda model: model(TOKENS)),
    "pairs": (PairClassifier, lambda model: model(TOKENS, TOKENS.flip(1))),
    "masked": (MaskedModel, lambda model: model(TOKENS)),
    "vil": (ViL, lambda model: model(IMAGE)),
    "cvt": (CvT, lambda model: model(IMAGE)),
}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Where they lie, and what they gave; their paths are relative."""
    folder = earlier(tmp_path)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    logging.disable(logging.WARNING)  # small sets are not the official ones
    yield folder / "runs", json.loads((folder / "expected.json").read_text())
    logging.disable(logging.NOTSET)


def sums(folder):
    weights = load_file(RunFolder(folder).checkpoints.last() / "model.safetensors")
    return {name: t.double().sum().item() for name, t in compared(weights).items()}


def compared(weights):
    """The gradient of a bias of row logits is 0 but for rounding, which AdamW makes large."""
    return {name: weights[name] for name in weights if not name.endswith("rows.bias")}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_as_it_would_have(old, name):
    out, expected = old
    assert sums(out / name) == pytest.approx(compared(expected[name]["weights"]), abs=1e-6)
    run = replace(RunFolder(out / name).run, steps=4)
    result = train(run, out, cpu=True, resume=True, console=Console(file=io.StringIO()))
    assert result.step == 4
    assert result.metrics == pytest.approx(expected[name]["resumed"]["metrics"], rel=1e-5)
    assert result.loss == pytest.approx(expected[name]["resumed"]["loss"], rel=1e-5)
    assert sums(out / name) == pytest.approx(compared(expected[name]["resumed"]["weights"]), abs=1e-4)
    assert json.loads((out / name / "run.json").read_text())["type"] == "Run"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_as_it_was(old, name, tmp_path, capsys):
    out, expected = old
    written = tmp_path / "result.json"
    split = ["--split", "dev", "--protocol", "fast", "--context", "8", "--batch", "2"]
    assert main(["evaluate", str(out / name), *split, "--cpu", "--out", str(written)]) == 0, capsys.readouterr().err
    facts, metrics = json.loads(written.read_text()), expected[name]["metrics"]
    if name == "characters":
        assert facts["bits_per_character"]["dev"] == pytest.approx(metrics["bpc"], rel=1e-4)
    else:
        metric = "restored" if "restored" in metrics else "accuracy"
        (share,) = facts[metric].values()
        assert share == pytest.approx(metrics[metric])


@pytest.mark.parametrize("name", [name for name in RUNS if name in ("classifier", "pairs", "pictures", "reviews")])
def test_what_was_noted_of_a_run_is_read_and_comes_out_again(old, name):
    out, expected = old
    before = RunFolder(out / name).evaluated
    assert before["accuracy"] == expected[name]["evaluated"]
    after = evaluate_run(RunFolder(out / name).run, out, cpu=True)
    assert after["accuracy"] == pytest.approx(before["accuracy"]) and after.keys() == before.keys()
    assert after["data"] == before["data"] and after["checkpoint"] == before["checkpoint"]
    assert RunFolder(out / name).evaluated == after


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model_gives_the_same_scores(old, name):
    _, expected = old
    kind, call = SAVED[name]
    for model in (kind.from_pretrained(f"models/{name}").eval(), Trained.open(f"models/{name}").model()):
        assert call(model).detach().flatten()[:6].tolist() == pytest.approx(expected["models"][name], abs=2e-6)


def test_a_converted_encoder_gives_the_same_scores(old):
    import longshort.hf

    _, expected = old
    auto = longshort.hf.hf.AutoModelForSequenceClassification
    scores = auto.from_pretrained("models/encoder").eval()(TOKENS).logits
    assert scores.detach().flatten().tolist() == pytest.approx(expected["models"]["encoder"], abs=2e-6)
    assert Trained.open("models/encoder").model().config.model_type == "longshort-bert"
