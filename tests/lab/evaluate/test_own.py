"""A task and a model of one's own, once they are registered, are evaluated by the function behind the command."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from training import do, language

from longshort.lab.cli.evaluate import Options, evaluate_model
from longshort.lab.evaluate import Share
from longshort.lab.runs.folder import RunFolder
from longshort.lab.tasks import LanguageModelling
from longshort.lab.trained import Trained
from longshort.serial import registered

pytestmark = pytest.mark.usefixtures("one_thread")


class Indifferent(nn.Module):
    """All characters are alike to it, whatever it learns."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, tokens, caches=None):
        return self.weight.expand(*tokens.shape, 256), caches


@registered("tests.Indifferent")
@dataclass(frozen=True)
class IndifferentConfig:
    def build(self):
        return Indifferent()


@dataclass(frozen=True)
class Three:
    """Of four."""

    name: str
    size: int = 4
    metrics: tuple = ("fours", "more")

    def run(self, model, processes, advance):
        advance(4)
        return dict(zip(self.metrics, (Share(3.0, 4.0), Share(1.0, 8.0)), strict=True))


@registered("tests.Fours")
@dataclass(frozen=True)
class Fours(LanguageModelling):
    metric = "fours"

    def evaluators(self, split):
        yield Three(split)


def test_a_model_of_ones_own(tmp_path, capsys):
    do(language(tmp_path, model=IndifferentConfig(), steps=1), tmp_path)
    assert Trained.open(str(tmp_path / "language")).kind == "other"
    found = evaluate_model(str(tmp_path / "language"), Options(cpu=True))
    assert found["bpc"] == {"dev": pytest.approx(8.0), "test": pytest.approx(8.0)}
    assert [line.partition(" bits")[0] for line in capsys.readouterr().out.splitlines()] == [
        "dev: 8.0000",
        "test: 8.0000",
    ]


def test_a_task_of_ones_own(tmp_path, capsys):
    run = language(tmp_path, model=IndifferentConfig(), steps=1)
    do(replace(run, task=Fours(**vars(run.task))), tmp_path)
    found = evaluate_model(str(tmp_path / "language"), Options(split="dev", cpu=True))
    assert found["fours"] == {"dev": 0.75}
    assert capsys.readouterr().out.splitlines() == ["dev: fours 0.7500", "dev: more 0.1250"]


@registered("tests.ByLoss")
@dataclass(frozen=True)
class ByLoss(LanguageModelling):
    metric = "loss"

    def evaluators(self, split):
        yield Three(split, metrics=("loss", "more"))


def test_a_task_may_be_evaluated_by_a_loss(tmp_path):
    """Which is called dev_loss beside that of training."""
    run = language(tmp_path, model=IndifferentConfig(), steps=1)
    do(replace(run, task=ByLoss(**vars(run.task))), tmp_path)
    assert RunFolder(tmp_path / "language").result["metrics"] == {"dev_loss": 0.75, "more": 0.125}


@registered("tests.Unmeasured")
@dataclass(frozen=True)
class Unmeasured(LanguageModelling):
    metric = "speed"

    def evaluators(self, split):
        yield Three(split)


@registered("tests.Twice")
@dataclass(frozen=True)
class Twice(Fours):
    def evaluators(self, split):
        return [Three("same"), Three("same")]


@pytest.mark.parametrize("task, words", [(Unmeasured, "fours, more.*Unmeasured.*speed"), (Twice, "two.*'same'")])
def test_evaluations_that_mean_nothing_are_refused(task, words, tmp_path):
    run = language(tmp_path, model=IndifferentConfig(), steps=1)
    with pytest.raises(ValueError, match=words):
        do(replace(run, task=task(**vars(run.task))), tmp_path)


def test_two_evaluators_of_one_name_are_refused_by_the_command_too(tmp_path):
    run = language(tmp_path, model=IndifferentConfig(), steps=1)
    do(run, tmp_path)
    record = tmp_path / "language" / "run.json"
    record.write_text(record.read_text().replace('"LanguageModelling"', '"tests.Twice"'))
    with pytest.raises(ValueError, match=r"two.*'same'"):
        evaluate_model(str(tmp_path / "language"), Options(split="dev", cpu=True))


@registered("tests.Unbuildable")
@dataclass(frozen=True)
class Unbuildable:
    def build(self):
        return None + 1


def test_what_is_wrong_in_a_model_of_ones_own_keeps_its_traceback(tmp_path):
    with pytest.raises(TypeError, match="unsupported operand"):
        do(language(tmp_path, model=Unbuildable()), tmp_path)
