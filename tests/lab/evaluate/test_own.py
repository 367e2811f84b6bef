"""A task and a model of one's own, once they are registered, are evaluated by the same command."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from training import do, language

from longshort.lab.cli.evaluate import Options, evaluate_model
from longshort.lab.evaluate import Share
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

    def run(self, model, processes, advance):
        advance(4)
        return {"fours": Share(3.0, 4.0), "more": Share(1.0, 8.0)}


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
