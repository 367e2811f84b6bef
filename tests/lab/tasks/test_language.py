"""Language modelling: lanes in parts, a loss that goes on where the text stopped, bits of the development text."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from evaluations import shares
from torch import nn

from longshort.lab.data.source import FileSource
from longshort.lab.evaluate.bits import Reading, bits
from longshort.lab.tasks import LanguageModelling
from longshort.models import CharLMConfig

TINY = CharLMConfig(layers=2, width=16, heads=2, feedforward=24, window=8, segment=4)


@pytest.fixture
def task(tmp_path):
    text = np.random.default_rng(0).integers(0, 256, 2_000, dtype=np.uint8)
    (tmp_path / "text").write_bytes(text.tobytes())
    source = FileSource(tmp_path / "text", dev_share=0.1, test_share=0.1)
    return LanguageModelling(source, length=12, sequences=4, evaluation=Reading(context=20, batch=3))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = TINY.build().double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def test_a_batch_is_lanes_of_the_training_text(task):
    train = task.splits.train
    assert len(train) == 1600
    for step in (0, 7, 200):
        batch = task.batch(step, 0, 1)
        assert batch.dtype == torch.uint8 and batch.shape == (4, 13)
        places = (np.arange(4)[:, None] * 400 + step * 12 + np.arange(13)) % 1600
        assert batch.tolist() == train[places].tolist()


def test_tokens_are_predictions(task):
    assert task.size(task.batch(0, 0, 1)) == 4 * 12
    assert task.size(task.batch(0, 1, 2)) == 2 * 12


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_are_disjoint_and_make_the_batch(task, parts):
    batch = torch.cat([task.batch(3, part, parts) for part in range(parts)])
    assert torch.equal(batch, task.batch(3, 0, 1))


def test_the_loss_goes_on_where_the_text_stopped(task, model):
    first, second = (task.batch(step, 0, 1) for step in range(2))
    together = torch.cat([first[:, :-1], second], dim=1).long()
    logits, _ = model(together[:, :-1])
    losses = F.cross_entropy(logits.mT, together[:, 1:], reduction="none")
    loss, carry = task.loss(model, first, None)
    assert loss.item() == pytest.approx(losses[:, :12].mean().item(), rel=1e-6)
    assert task.loss(model, second, carry)[0].item() == pytest.approx(losses[:, 12:].mean().item(), rel=1e-6)
    assert task.loss(model, second, None)[0].item() != pytest.approx(losses[:, 12:].mean().item(), rel=1e-4)


def test_what_is_carried_has_no_gradient(task, model):
    loss, carry = task.loss(model, task.batch(0, 0, 1), None)
    assert loss.requires_grad
    tensors = [t for cache in carry for t in vars(cache).values() if isinstance(t, torch.Tensor)]
    assert tensors and not any(t.requires_grad for t in tensors)


def test_evaluation_is_bits_of_the_development_text(task, model):
    total, count = shares(task, model, 0, 1)["bpc"]
    assert (total, count) == bits(model, task.splits.dev, task.evaluation, block=12) and count == 199
    parts = [shares(task, model, part, 2)["bpc"] for part in range(2)]
    assert sum(count for _, count in parts) == 199
    assert sum(total for total, _ in parts) == pytest.approx(total, rel=1e-6)


def test_evaluation_can_be_of_less(task, model):
    less = replace(task, dev_bytes=30)
    assert shares(less, model, 0, 1)["bpc"] == bits(model, task.splits.dev[:30], task.evaluation, block=12)


def test_fewer_bits_are_better(task):
    assert task.metric == "bpc" and not task.higher_is_better


def test_too_little_text_is_refused_before_it_is_trained_on(tmp_path):
    (tmp_path / "text").write_bytes(b"x" * 39)
    task = LanguageModelling(FileSource(tmp_path / "text"), 4, 1)
    with pytest.raises(ValueError, match="development text has 1 bytes"):
        task.fingerprint()
