"""The examples run, and do what they say."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import transformers as hf
from tiny_encoders import tiny_checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_long_document_is_labelled(capsys):
    assert example("long_document_labels").main(steps=140, tokens=4096) > 0.995
    assert "a document of 4,096 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "labels"])
def test_trainer(masked, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    tiny_checkpoint(tmp_path / "before", "roberta")
    settings = dict(masked=masked, length=150, window=8, rank=4, batch=4, rate=3e-3)
    trainer = example("trainer").main(str(tmp_path / "before"), None, tmp_path / "out", epochs=4, **settings)
    losses = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    assert len(losses) == 4 and losses[-1] < losses[0]
    auto = hf.AutoModelForMaskedLM if masked else hf.AutoModelForSequenceClassification
    assert auto.from_pretrained(tmp_path / "out" / "model").config.model_type == "longshort-roberta"
    if masked:  # a classifier starts from it
        start = str(tmp_path / "out" / "model")
        example("trainer").main(start, None, tmp_path / "next", epochs=1, **{**settings, "masked": False})
        assert not list((tmp_path / "next").glob("converted*"))
