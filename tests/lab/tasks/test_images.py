"""Classification of pictures: batches depend on the step alone, every picture is evaluated once, and a model learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluations import shares
from pictures import CVT
from shapes import KINDS, as_folder, files
from torch import nn
from training import checkpoints, do, outcome, stop_before

from longshort.lab.data.images import ImageFolder
from longshort.lab.evaluate.pictures import picture_scores
from longshort.lab.tasks import images
from longshort.lab.tasks.augment import Augment
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.train import AdamW, Run, StoppedError
from longshort.nn.spec import LongShort

PLAIN = Augment(operations=0, erase=0.0, mixup=0.0, cutmix=0.0)


@pytest.fixture
def task(tmp_path):
    return ImageClassification(
        ImageFolder(as_folder(tmp_path / "data", files(train=20))), side=16, images=12, evaluation_batch=4
    )


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:2], b[:2], strict=True)) and a[2].own == b[2].own


def test_batches_depend_on_the_step_alone(task):
    first, second = task.batch(0, 0, 1), task.batch(1, 0, 1)
    again = replace(task)
    assert same(again.batch(1, 0, 1), second) and same(again.batch(0, 0, 1), first)
    assert first[0].shape == (12, 3, 16, 16) and first[0].dtype == torch.uint8
    assert not same(replace(task, order=1).batch(0, 0, 1), first)


def test_parts_make_up_the_batch(task):
    labels = torch.cat([task.batch(3, part, 2)[1] for part in range(2)])
    assert torch.equal(labels, task.batch(3, 0, 1)[1])


def test_a_batch_may_be_of_many_chunks(task, monkeypatch):
    expected = task.batch(0, 0, 1)[1]
    monkeypatch.setattr(images, "CHUNK", 5)
    made, labels, draws = replace(task).batch(0, 0, 1)
    assert len(made) == len(draws.erased) == 12 and torch.equal(labels, expected)


class ByColour(nn.Module):
    """Knows by the strongest colour what it sees."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x.mean((2, 3)).flip(1)


def test_every_picture_is_evaluated_once(task):
    model = ByColour()
    found = shares(task, model, 0, 1)
    assert found["accuracy"] == (9.0, 9)
    parts = [shares(task, model, part, 2) for part in range(2)]
    assert sum(p["accuracy"][1] for p in parts) == 9
    assert sum(p["loss"][0] for p in parts) == pytest.approx(found["loss"][0], rel=1e-5)
    told = []
    seen = [which for _, which in picture_scores(model, task.splits.dev, task.view, 4, advance=told.append)]
    assert sorted(np.concatenate(seen)) == list(range(9)) and sum(told) == 9
    model.scale.data.neg_()
    assert shares(task, model, 0, 1)["accuracy"][0] < 5


def test_broken_pictures_do_not_count(task, caplog):
    (task.source.path / "val" / "red" / "1.png").write_bytes(b"")
    assert shares(task, ByColour(), 0, 1)["accuracy"] == (8.0, 8)
    assert "1 so far" in caplog.text
    (task.source.path / "train" / "red" / "1.png").write_bytes(b"")
    for step in range(5):
        assert len(task.batch(step, 0, 1)[0]) == 12
    assert "train/red/1.png" in caplog.text


def test_the_loss_is_that_of_mixed_labels(task):
    model, smooth = ByColour(), replace(task, smoothing=0.2)
    seen, labels, share = smooth.prepare(smooth.batch(0, 0, 1))
    loss, carry = smooth.loss(model, (seen, labels, share), None)
    assert carry is None
    mixed = share * nn.functional.one_hot(labels, 3) + (1 - share) * nn.functional.one_hot(labels.flip(0), 3)
    target = 0.8 * mixed + 0.2 / 3
    expected = -(target * model(seen).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)


def run_of(task, **changes):
    local = LongShort(window=2, rank=1)
    model = replace(CVT.with_attention(local, local, local), classes=3, drop_path=0.1)
    every = dict(log_every=2, evaluate_every=3, save_every=2)
    return Run("colours", model, replace(task, side=32), 6, optimizer=AdamW(lr=3e-3), average=0.5, **every, **changes)


def test_a_model_learns(task):
    task = replace(task, augment=PLAIN, images=20)
    run = replace(run_of(task), steps=25, evaluate_every=25, save_every=25, log_every=25)
    result, printed = do(run, task.source.path.parent)
    assert result.metrics["accuracy"] > 0.8 and "accuracy" in printed and "pictures/s" in printed


def test_a_stopped_training_goes_on_as_if_nothing_had_been(task, tmp_path, monkeypatch):
    run = run_of(task)
    do(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_before(patch.setattr, 4)
        with pytest.raises(StoppedError):
            do(run, tmp_path / "parts")
    do(replace(run), tmp_path / "parts", resume=True)
    assert outcome(run, tmp_path / "parts") == outcome(run, tmp_path / "whole")
    assert checkpoints(run, tmp_path / "parts").steps()[-1] == 6


@pytest.mark.parametrize(
    "wrong", [dict(side=0), dict(images=0), dict(evaluation_batch=0), dict(smoothing=1.0), dict(crop=0.0)]
)
def test_what_makes_no_sense_is_refused(wrong, tmp_path):
    with pytest.raises(ValueError, match=r"must be|are shares"):
        ImageClassification(ImageFolder(tmp_path), **wrong)


def test_pictures_of_other_classes_are_refused(task):
    assert len(replace(task, classes=3).splits.classes) == 3
    with pytest.raises(ValueError, match="data has 3 classes, and the model 10"):
        replace(task, classes=10).fingerprint()


def test_labels_have_names(task):
    assert task.splits.classes == KINDS
