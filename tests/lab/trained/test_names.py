"""A model is named by a folder, a file or a name on the hub: each opens as what it is, or is refused by name."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from pictures import CVT, VIL
from tiny_encoders import SENTENCES, tiny_checkpoint

from longshort.hf import convert
from longshort.lab.cli import main
from longshort.lab.trained import Trained, trained
from longshort.models.charlm import CharLMConfig
from longshort.models.sequence import MaskedConfig, PairConfig, SequenceConfig
from longshort.nn.spec import LongShort

RELEASED = Path(__file__).parents[2] / "fixtures" / "released" / "vil_ls_released_tiny.npz"
REVISION = 40 * "1"
SIZES = dict(layers=1, width=16, heads=2, feedforward=24)
SEQUENCES = SequenceConfig(LongShort(4, 2), classes=2, length=16, **SIZES)
MODELS = {
    "language": CharLMConfig(window=8, segment=4, **SIZES),
    "sequences": SEQUENCES,
    "sequences, pairs": PairConfig(**vars(SEQUENCES)),
    "masked": MaskedConfig(**vars(SEQUENCES)),
    "pictures, ViL": VIL,
    "pictures, CvT": CVT,
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder; what lies in it is on the hub as me/it, as far as can be seen from here."""
    kept = tmp_path / "hub" / "models--me--it"
    (kept / "snapshots" / REVISION).mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(REVISION)
    monkeypatch.chdir(tmp_path)  # where no folder me is
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return kept / "snapshots" / REVISION


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_the_same_in_a_folder_and_on_the_hub(name, hub, capsys):
    model = MODELS[name].build()
    model.save_pretrained(hub)
    for opened in (Trained.open(str(hub)), Trained.open("me/it")):
        assert opened.kind == name.partition(",")[0] and opened.config == MODELS[name] and opened.run is None
        found = opened.model()
        assert type(found) is type(model) and not found.training
        weights = found.state_dict()
        assert all(torch.equal(t, weights[key]) for key, t in model.state_dict().items())
    assert capsys.readouterr().out == ""  # what is written goes there


def test_of_a_model_on_the_hub_the_weights_come_when_they_are_needed(hub, monkeypatch):
    MODELS["language"].build().save_pretrained(hub)
    downloads = []

    def download(name, allow_patterns, revision):
        downloads.append(allow_patterns)
        return str(hub)

    monkeypatch.setattr(trained, "snapshot_download", download)
    with pytest.raises(ValueError, match="me/it is a language model"):
        Trained.open("me/it").expect("pictures")
    assert downloads == [["config.json"]]
    Trained.open("me/it").model()
    assert "*.safetensors" in downloads[-1]


@pytest.mark.parametrize("name", MODELS)
def test_a_config_of_before_that_names_no_type_is_the_same_on_the_hub(name, hub):
    """Its weights tell what it is."""
    MODELS[name].build().save_pretrained(hub)
    config = json.loads((hub / "config.json").read_text())
    del config["type"]
    (hub / "config.json").write_text(json.dumps(config))
    for opened in (Trained.open(str(hub)), Trained.open("me/it")):
        assert opened.config == MODELS[name]
        opened.model()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_a_wrong_type(path):
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": "many"}))


@pytest.mark.parametrize(
    "file, damage",
    [("model.safetensors", cut), ("config.json", cut), ("config.json", of_a_wrong_type), ("tokenizer.json", cut)],
)
def test_a_damaged_encoder_is_named_in_a_line(file, damage, tmp_path, capsys):
    tiny_checkpoint(tmp_path / "before", "bert")
    found = convert(tmp_path / "before", max_length=150, window=16, rank=4, text=" ".join(SENTENCES * 20))
    found.save(tmp_path / "model")
    damage(tmp_path / "model" / file)
    name = str(tmp_path / "model")
    with pytest.raises(ValueError, match=f"^{re.escape(name)}[^\n]*$"):
        opened = Trained.open(name)
        (opened.tokenizer if "tokenizer" in file else opened.model)()
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES * 99))
    sizes = ["--attention", "16,4", "--length", "150", "--data", str(tmp_path / "texts.txt")]
    assert main(["train", "roberta.base", "--checkpoint", name, *sizes, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    *_, line = error.splitlines()
    assert line.startswith("longshort: ") and name in line and "Traceback" not in error


def test_a_converted_encoder_too(hub):
    tiny_checkpoint(hub.parents[2] / "before", "bert")
    found = convert(hub.parents[2] / "before", max_length=150, window=16, rank=4, text=" ".join(SENTENCES * 20))
    found.save(hub)
    tokens = torch.randint(5, 60, (1, 140))
    expected = found.model.base_model(tokens)[0]
    for name in (str(hub), "me/it"):
        opened = Trained.open(name)
        assert opened.kind == "encoder"
        torch.testing.assert_close(opened.model()(tokens)[0], expected)


def test_an_encoder_that_was_not_converted_is_named(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    with pytest.raises(ValueError, match=f"{tmp_path}.* bert"):
        Trained.open(str(tmp_path)).model()


def test_a_released_file(tmp_path):
    data = dict(np.load(RELEASED))
    state = {name.removeprefix("state."): torch.from_numpy(t) for name, t in data.items() if name.startswith("state.")}
    torch.save(state, tmp_path / "model.pth")
    opened = Trained.open(str(tmp_path / "model.pth"))
    model = opened.model()
    assert opened.vision and opened.view(model).side == 64
    with torch.no_grad():
        torch.testing.assert_close(
            model(torch.from_numpy(data["image"])), torch.from_numpy(data["logits"]), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("name", ["nowhere", "./me/it", "TMP/model", "TMP/model.pth"])
def test_what_is_nowhere_is_named(name, hub, capsys):
    name = name.replace("TMP", str(hub.parents[2]))
    assert main(["evaluate", name, "--cpu"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"type": 7}',
        '{"type": "LongShort", "window": 4, "rank": 2}',
        '{"stages": 7}',
        '{"stages": []}',
        '{"width": 24}',
    ],
)
def test_a_config_that_is_none_is_named_in_a_line(content, tmp_path, capsys):
    MODELS["language"].build().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(content)
    name, out = str(tmp_path), str(tmp_path / "a.png")
    for command in (
        ["evaluate", name, "--text", out],
        ["generate", name, "--prompt", "a"],
        ["analyse", "norms", name, "--out", out],
    ):
        assert main(command) == 1
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("longshort: ") and name in line
