"""The moving average of weights is what is evaluated and saved; the training itself does not notice it."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training import checkpoints, do, language, outcome, points, same_weights, stop_before, weights

from longshort.lab.evaluate.bits import BitsPerCharacter
from longshort.lab.train import StoppedError
from longshort.lab.train.average import Average


class Jumping(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))


def test_it_keeps_its_share_of_what_it_was():
    model = Jumping()
    average = Average(model, 0.5)
    for step, value in enumerate([8.0, 4.0], start=9):  # from step 8 on it keeps as much as it should
        model.weight.data.fill_(value), model.mean.fill_(value), model.count.fill_(step)
        average.update(model, step)
    with average.used(model):
        assert model.weight.tolist() == [4.0, 4.0] and model.mean.item() == 4.0 and model.count == 10
    assert model.weight.tolist() == [4.0, 4.0]
    model.weight.data.fill_(1.0)
    with average.used(model):
        assert model.weight.tolist() == [4.0, 4.0]
    assert model.weight.tolist() == [1.0, 1.0]


def test_at_first_it_forgets_faster():
    model = Jumping()
    average = Average(model, 0.999)
    model.weight.data.fill_(11.0)
    average.update(model, 1)
    assert average.kept[0].tolist() == pytest.approx([9.0, 9.0])  # of 0, two of eleven parts are kept


def test_the_training_is_that_without_it(tmp_path):
    plain, averaged = points(), points(average=0.9)
    do(plain, tmp_path / "plain"), do(averaged, tmp_path / "averaged")
    last = checkpoints(averaged, tmp_path / "averaged").last()
    same_weights(load_file(last / "trained.safetensors"), weights(plain, tmp_path / "plain"))
    found, trained = (load_file(last / f"{name}.safetensors")["line.weight"] for name in ("model", "trained"))
    assert not torch.equal(found, trained)


def test_it_is_evaluated(tmp_path, monkeypatch):
    run = language(tmp_path, average=0.5)
    seen, before = [], BitsPerCharacter.run

    def watched(evaluator, model, processes, advance):
        seen.append(model.norm.weight.clone())
        return before(evaluator, model, processes, advance)

    monkeypatch.setattr(BitsPerCharacter, "run", watched)
    do(run, tmp_path)
    assert torch.equal(seen[-1], weights(run, tmp_path)["norm.weight"])


def test_a_resumed_training_goes_on_with_it(tmp_path, monkeypatch):
    run = language(tmp_path, average=0.8)
    do(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_before(patch.setattr, 4)
        with pytest.raises(StoppedError):
            do(run, tmp_path / "parts")
    do(run, tmp_path / "parts", resume=True)
    assert outcome(run, tmp_path / "parts") == outcome(run, tmp_path / "whole")


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_other_decays_are_refused(decay):
    with pytest.raises(ValueError, match="average must be"):
        points(average=decay)
