"""Pretrained encoders go on with their pretraining and learn labels, over the one loop and on tiny random weights."""

import logging

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from tiny_encoders import SENTENCES, reviews, tiny_checkpoint
from training import same_weights

from longshort.lab.cli import main
from longshort.lab.recipes.roberta import base, imdb, large
from longshort.lab.runs.checkpoints import Checkpoints
from longshort.lab.runs.folder import RunFolder
from longshort.lab.runs.log import read_log
from longshort.lab.train import Schedule
from longshort.lab.trained.encoder import EncoderConfig
from longshort.nn.spec import Full, LongShort
from longshort.serial import as_json, from_json

SMALL = ["--attention", "8,4", "--length", "80", "--log-every", "1", "--cpu"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hf.utils.logging.disable_progress_bar()


def test_longformers_procedure(tmp_path):
    for recipe, name in ((base, "roberta-base"), (large, "roberta-large")):
        run = recipe(tmp_path)
        assert run.model.checkpoint == run.task.source.tokenizer == name
        assert (run.steps, run.task.sequences, run.task.length, run.optimizer.lr) == (65_000, 64, 4_096, 3e-5)
        assert run.schedule == Schedule("polynomial", warmup=500, power=3.0)
        assert run.task.share == 0.15
        assert run.model.attention == LongShort(window=128, rank=64)
        assert from_json(as_json(run)) == run


def test_the_reviews():
    run = imdb()
    assert (run.task.sequences, run.task.length, run.model.classes) == (32, 4_096, 2)
    assert run.steps == 5 * (22_500 // 32) and run.evaluate_every == 22_500 // 32
    assert run.task.source.source.held_out == 0.1
    assert imdb(attention="full").model.attention == Full()
    assert {imdb(attention=a, length=n, seed=s).name for a in ("8,4", "full") for n in (5, 6) for s in (0, 1)} == {
        f"roberta.imdb.{a}.n{n}.seed{s}" for a in ("w8r4", "full") for n in (5, 6) for s in (0, 1)
    }
    with pytest.raises(ValueError, match="attention must be WINDOW,RANK, such as 128,64, or full, got 'linformer'"):
        imdb(attention="linformer")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_from_a_checkpoint_to_an_evaluated_classifier(kind, tmp_path, capsys, monkeypatch):
    """Hidden tokens, then labels, each as a command; what comes out is a model of transformers."""
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "tiny", kind, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 200))
    data = ["--data", "text.txt", "--checkpoint", "tiny"]
    assert main(["train", "roberta.base", *data, *SMALL, "--steps", "4", "--save-every", "2"]) == 0
    run = "out/roberta.base.tiny.w8r4.n80.seed0"
    capsys.readouterr()
    assert main(["evaluate", run, "--cpu", "--which", "last"]) == 0
    restored = RunFolder(tmp_path / run).result["metrics"]["restored"]
    assert capsys.readouterr().out.startswith(f"dev: {100 * restored:.2f} % ")
    losses = [line["loss"] for line in read_log(tmp_path / run) if "loss" in line]
    assert len(losses) == 4 and all(loss > 0 for loss in losses)
    model = hf.AutoModelForMaskedLM.from_pretrained(Checkpoints(tmp_path / run / "checkpoints").last())
    assert model.config.model_type == f"longshort-{kind}" and model.config.longest == 80
    embedded, decoder = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embedded.data_ptr() == decoder.data_ptr()  # tied again

    data = ["--data", str(reviews(tmp_path / "imdb")), "--checkpoint", run]
    assert main(["train", "roberta.imdb", *data, *SMALL, "--steps", "6", "--save-every", "3"]) == 0
    capsys.readouterr()
    run = "out/roberta.imdb.base.tiny.w8r4.n80.seed0.w8r4.n80.seed0"
    assert main(["evaluate", run, "--cpu", "--out", "found.json"]) == 0
    told = capsys.readouterr().out
    assert "dev:" in told and "test:" in told and "longest" in told
    folder = Checkpoints(tmp_path / run / "checkpoints").best()
    classify = hf.pipeline("text-classification", model=str(folder), device="cpu", truncation=True)
    assert [each["label"] for each in classify(["the film was good", SENTENCES[0] * 30])]


@pytest.mark.parametrize("recipe", ["roberta.base", "roberta.imdb"])
def test_a_run_goes_on_where_it_stopped(recipe, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.ERROR)
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "tiny", "roberta")
    data = reviews(tmp_path / "imdb") if recipe == "roberta.imdb" else tmp_path / "text.txt"
    if not data.exists():
        data.write_text("\n".join(SENTENCES * 200))
    wish = ["train", recipe, "--data", str(data), "--checkpoint", "tiny", *SMALL, "--save-every", "2"]
    assert main([*wish, "--steps", "4", "--out", "whole"]) == 0
    name = f"{recipe}.tiny.w8r4.n80.seed0"
    assert main([*wish, "--steps", "4", "--out", "parts"]) == 0
    checkpoints = tmp_path / "parts" / name / "checkpoints"
    last = Checkpoints(checkpoints).last()
    for file in last.iterdir():
        file.unlink()
    last.rmdir()  # as if it had been killed before the last one
    assert Checkpoints(checkpoints).steps() == [2]
    monkeypatch.setattr(EncoderConfig, "build", None)  # the checkpoint has all that is needed
    assert main([*wish, "--steps", "4", "--out", "parts", "--resume"]) == 0
    whole, parts = (Checkpoints(tmp_path / out / name / "checkpoints").last() for out in ("whole", "parts"))
    same_weights(load_file(whole / "model.safetensors"), load_file(parts / "model.safetensors"))


def test_full_attention_on_longer_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "tiny", "bert")
    data = ["--data", str(reviews(tmp_path / "imdb")), "--checkpoint", "tiny", "--attention", "full"]
    assert main(["train", "roberta.imdb", *data, *SMALL[2:], "--steps", "1"]) == 0
    folder = Checkpoints(tmp_path / "out/roberta.imdb.tiny.full.n80.seed0/checkpoints").last()
    capsys.readouterr()
    assert main(["analyse", "norms", str(folder)]) == 1  # there are no rows
    assert str(folder) in capsys.readouterr().err
    model = hf.AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.model_type == "bert" and model(torch.ones(1, 80, dtype=torch.long)).logits.isfinite().all()


def test_what_is_missing_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "tiny", "bert")
    assert main(["train", "roberta.base", "--data", "none.txt", "--checkpoint", "tiny", *SMALL]) == 1
    assert "none.txt is not there" in capsys.readouterr().err
    assert main(["train", "roberta.imdb", "--data", "nowhere", "--checkpoint", "tiny", *SMALL]) == 1
    assert "IMDb is not in nowhere" in capsys.readouterr().err
    data = ["--data", str(reviews(tmp_path / "imdb"))]
    assert main(["train", "roberta.imdb", *data, "--checkpoint", "./none", *SMALL]) == 1
    assert "./none is not there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
