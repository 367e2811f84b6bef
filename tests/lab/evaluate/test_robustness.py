"""Vision models evaluated from the command line: every set in its official layout, and one's own pictures."""

import json
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from evaluations import Part
from pictures import CVT, VIL
from PIL import Image
from shapes import as_folder, encoded, files, picture
from torch import nn

from longshort.lab.cli import main
from longshort.lab.data import corrupt
from longshort.lab.data.benchmarks import CORRUPTIONS, Benchmarks, number_of
from longshort.lab.data.corrupt import Corrupted
from longshort.lab.data.images import ImageFolder, Middle
from longshort.lab.evaluate import evaluate
from longshort.lab.evaluate.imagenet import SETS, Robustness, corrupted_on_the_way, on_sets
from longshort.lab.evaluate.measures import ALEXNET
from longshort.lab.runs.folder import RunFolder
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.train import AdamW, Run, train
from longshort.lab.trained import Trained
from longshort.models import CvT, ViL
from longshort.nn.spec import LongShort

WNIDS = {"blue": "n01", "green": "n02", "red": "n03"}
VIEW = Middle(16, 1.0)


class ByColour(nn.Module):
    """Finds blue, green and red by the strongest colour."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x.mean((2, 3)).flip(1)


def png(kind, seed=0):
    return encoded(picture(kind, seed, (20, 20)))


@pytest.fixture
def data(tmp_path):
    """Three classes. Of what shows another colour than its class, nothing is found."""
    made = {f"imagenet/val/{WNIDS[k]}/ILSVRC2012_val_{i + 1:08d}.png": png(k, i) for i, k in enumerate(WNIDS)}
    made["imagenet/val/n01/ILSVRC2012_val_00000004.png"] = png("red", 9)
    for number, kind in ((0, "blue"), (1, "green"), (2, "blue"), (2, "red")):
        made[f"imagenetv2-matched-frequency-format-val/{number}/{kind}.png"] = png(kind)
    orange = encoded(Image.new("RGB", (20, 20), (250, 120, 10)))
    made |= {"imagenet-a/n01/1.png": png("blue"), "imagenet-a/n02/1.png": orange}
    made |= {
        "imagenet-r/n03/1.png": png("red"),
        "imagenet-r/n03/2.png": png("red", 2),
        "imagenet-r/n01/1.png": png("red", 5),
    }
    for place, name in enumerate(CORRUPTIONS):
        folder = f"imagenet-c/{'noise/' if place < 3 else ''}{name}"
        for severity in range(1, 6):
            kinds = ("blue", "blue") if severity < 3 else ("blue", "green")
            made |= {f"{folder}/{severity}/n01/{i}.png": png(kind, i) for i, kind in enumerate(kinds)}
    for variant, kind in (("original", "blue"), ("mixed_same", "green"), ("mixed_rand", "red")):
        made |= {
            f"bg_challenge/{variant}/val/00_dog/1.png": png(kind),
            f"bg_challenge/{variant}/val/01_bird/1.png": png("red"),
        }
    folder = as_folder(tmp_path / "sets", made)
    (folder / "real.json").write_text(json.dumps([[0], [2, 1], [], [2]]))
    (folder / "bg_challenge" / "in_to_in9.json").write_text(json.dumps({"0": 0, "1": -1, "2": 1}))
    return folder


def found_by(evaluators, progress=lambda name, size: lambda done: None):
    """What `ByColour` finds."""
    evaluators = list(evaluators)
    results = evaluate(ByColour(), evaluators, Part(), progress)
    return Robustness.of(results, [evaluator.pictures for evaluator in evaluators])


def found_on(data, *sets, **keywords):
    return found_by(on_sets(sets, Benchmarks(data), VIEW, 2), **keywords)


def test_every_set_by_its_own_measure(data):
    told = {}

    def progress(name, size):
        told[name, size] = 0
        return lambda done: told.update({(name, size): told[name, size] + done})

    found = found_on(data, *SETS, progress=progress)
    assert found.accuracy == pytest.approx(
        {
            "val": 3 / 4,
            "real": 3 / 3,  # the last is red, as one of its labels says; the third has none
            "v2": 3 / 4,
            "a": 2 / 2,  # what is more red than green, but cannot be red
            "r": 2 / 3,
            "original": 2 / 2,
            "mixed_same": 1 / 2,
            "mixed_rand": 1 / 2,
        }
    )
    assert list(found.corruptions) == list(CORRUPTIONS)
    assert all(each == pytest.approx([0.0, 0.0, 0.5, 0.5, 0.5]) for each in found.corruptions.values())
    expected = np.mean([0.3 / share for share in ALEXNET.values()])
    assert found.mce == pytest.approx(expected) and found.broken == 0
    assert all(done == size for (_, size), done in told.items()) and {("val", 4), ("snow 3", 2)} <= told.keys()


def test_classes_that_the_map_to_nine_leaves_out_belong_to_none(data):
    (data / "bg_challenge" / "in_to_in9.json").write_text(json.dumps({"0": 0}))
    found = found_on(data, "nine")
    assert found.accuracy == pytest.approx({"original": 1 / 2, "mixed_same": 0.0, "mixed_rand": 0.0})


def test_labels_of_more_classes_are_refused(data):
    (data / "real.json").write_text(json.dumps([[0], [999], [], [2]]))
    with pytest.raises(ValueError, match=r"999.* 3 classes"):
        found_on(data, "real")


def test_pictures_that_cannot_be_read_do_not_count(data):
    (data / "imagenet" / "val" / "n01" / "ILSVRC2012_val_00000004.png").write_bytes(b"")
    found = found_on(data, "val", "real")
    assert found.accuracy == {"val": 1.0, "real": 1.0} and found.broken == 1


def test_what_is_missing_is_told(data):
    benchmarks = Benchmarks(data)
    (data / "bg_challenge" / "in_to_in9.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"in_to_in9\.json"):
        benchmarks.nine(3)
    (data / "bg_challenge" / "in_to_in9.json").write_text("[")
    with pytest.raises(ValueError, match=r"in_to_in9\.json"):
        benchmarks.nine(3)
    (data / "real.json").write_text("{")
    with pytest.raises(ValueError, match=r"real\.json"):
        found_on(data, "real")
    with pytest.raises(FileNotFoundError, match="imagenet-c"):
        Benchmarks(data / "imagenet").corrupted(["n01"])
    with pytest.raises(ValueError, match=r"val/n01/cat\.png"):
        number_of("val/n01/cat.png", 50_000)
    assert number_of("ILSVRC2012_val_00000293.JPEG", 50_000) == 292


def test_a_model_of_other_classes_is_refused(data, tmp_path, capsys):
    VIL.build().save_pretrained(tmp_path / "vil")
    own = as_folder(tmp_path / "own", files()) / "val"
    for on in (["--on", "val", "--data", str(data)], ["--data", str(data)], ["--corrupt", str(own)]):
        assert main(["evaluate", str(tmp_path / "vil"), "--cpu", *on]) == 1
        (*_, line) = capsys.readouterr().err.splitlines()
        assert "5 classes" in line and " 3: " in line


@pytest.fixture
def run(tmp_path):
    """A training of a moment, on pictures."""
    local = LongShort(window=2, rank=1)
    model = replace(CVT.with_attention(local, local, local), classes=3)
    task = ImageClassification(ImageFolder(as_folder(tmp_path / "data", files())), side=16, images=6)
    train(Run("colours", model, task, 1, optimizer=AdamW(lr=1e-3)), tmp_path, cpu=True)
    return tmp_path / "colours"


def test_a_run_is_evaluated_on_its_own_pictures_or_on_others(run, data, tmp_path, capsys):
    assert Trained.open(str(run)).vision
    out = tmp_path / "found.json"
    assert main(["evaluate", str(run), "--cpu", "--out", str(out)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    share = RunFolder(run).result["metrics"]["accuracy"]
    assert line == f"validation set: {100 * share:.2f} %"
    facts = json.loads(out.read_text())
    assert facts["accuracy"] == {"validation": share} and "16" in facts["view"] and facts["broken_pictures"] == 0
    assert main(["evaluate", str(run), "--cpu", "--on", "robustness", "--data", str(data), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "CvT*-LS-13 (paper)" in printed and "mCE: " in printed and "ImageNet-9, mixed-rand: " in printed
    facts = json.loads(out.read_text())
    assert set(facts["accuracy"]) == {"val", "a", "r", "original", "mixed_same", "mixed_rand"}
    assert facts["mce"] is not None
    assert main(["evaluate", str(run), "--cpu", "--on", "val"]) == 1
    assert "--data" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--cpu", "--split", "test"]) == 1
    assert "nothing to evaluate on the test set" in capsys.readouterr().err


def test_saved_and_released_models_are_known(tmp_path):
    for config in (VIL, CVT):
        model = config.build()
        model.save_pretrained(tmp_path / type(model).__name__)
        opened = Trained.open(str(tmp_path / type(model).__name__))
        found = opened.model()
        assert type(found) is type(model) and isinstance(found, ViL | CvT) and opened.vision
        assert opened.view(found) == Middle(48 if isinstance(model, ViL) else 224, 0.875)
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        Trained.open("none.pth")


def darker(image, corruption_name, severity):
    """As imagecorruptions is called."""
    noise = np.random.randint(0, 3, image.shape)
    return (image * (1 - severity / 10) + noise).astype(np.float64)


@pytest.fixture
def package(monkeypatch):
    """The package needs others that are large; what it does is its own affair."""
    made = ModuleType("imagecorruptions")
    made.corrupt, made.corruptions = darker, ModuleType("imagecorruptions.corruptions")
    made.corruptions.gaussian = lambda image, sigma=1, channel_axis=None: (sigma, channel_axis)
    made.corruptions.np = np
    monkeypatch.setitem(sys.modules, "imagecorruptions", made)
    monkeypatch.setitem(sys.modules, "imagecorruptions.corruptions", made.corruptions)
    corrupt.package.cache_clear()
    yield made
    corrupt.package.cache_clear()


def test_a_picture_is_always_corrupted_alike_and_nothing_else_is_disturbed(package):
    view, image, state = Corrupted("fog", 3, Middle(8, 1.0)), picture("red", 0), np.random.get_state()[1].copy()
    first, again = view(image), view(image)
    assert np.array_equal(first, again) and first.shape == (3, 8, 8) and first.dtype == np.uint8
    assert (np.random.get_state()[1] == state).all()
    assert first.mean() < Middle(8, 1.0)(image).mean()


def test_the_package_finds_the_older_names_it_asks_for(package):
    made = corrupt.package().corruptions
    assert made.np.float_ is np.float64 and made.np.zeros is np.zeros
    assert made.gaussian(None, 2, multichannel=True) == (2, -1) and made.gaussian(None) == (1, None)


def test_ones_own_pictures_corrupted(package, tmp_path, run, capsys):
    folder = tmp_path / "data" / "val"
    found = found_by(corrupted_on_the_way(folder, VIEW, 2, names=["fog", "snow"]))
    assert found.accuracy == {"as they are": 1.0} and set(found.corruptions) == {"fog", "snow"}
    assert all(len(each) == 5 for each in found.corruptions.values()) and found.mce is None
    assert main(["evaluate", str(run), "--cpu", "--corrupt", str(folder)]) == 0
    assert "jpeg_compression" in capsys.readouterr().out


def test_without_the_package_its_extra_is_named(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    corrupt.package.cache_clear()
    for use in (corrupt.package, lambda: list(corrupted_on_the_way(tmp_path / "data" / "val", VIEW, 2))):
        with pytest.raises(ImportError, match=r"longshort\[corruptions\]"):
            use()
