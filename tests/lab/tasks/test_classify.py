"""Classification of sequences and of pairs: batches, losses and accuracy, and masked modelling on the same data."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from evaluations import shares
from torch import nn
from training import do, outcome, weights

from longshort.lab.data.labelled import Labelled, LabelledPairs, LabelledSplits, Sequences
from longshort.lab.evaluate.labels import in_order
from longshort.lab.tasks import Classification, MaskedModelling, PairClassification
from longshort.lab.train import AdamW, Run
from longshort.models.sequence import MaskedConfig, PairConfig, SequenceConfig
from longshort.nn.spec import LongShort

TINY = dict(length=30, layers=2, width=16, heads=2, feedforward=24, head=12, vocabulary=20)
MODEL = SequenceConfig(LongShort(4, 2), classes=3, dropout=0.1, **TINY)


def some(count, seed):
    random = np.random.default_rng(seed)
    return Sequences.of(random.integers(1, 10, random.integers(1, 41)) for _ in range(count))


@dataclass(frozen=True)
class Drawn:
    """Labels that the tokens tell: the remainder of the first one."""

    classes: int = 3

    def splits(self):
        def items(count, seed):
            made = some(count, seed)
            return Labelled(made, np.array([made[i][0] % 3 for i in range(count)], np.int64))

        return LabelledSplits(items(40, 0), items(17, 1), items(19, 2))


@dataclass(frozen=True)
class DrawnPairs:
    classes: int = 2

    def splits(self):
        def items(count, seed):
            documents = some(9, seed)
            pairs = np.random.default_rng(seed).integers(0, 9, (count, 2))
            return LabelledPairs(documents, pairs, (pairs[:, 0] % 2).astype(np.int64))

        return LabelledSplits(items(40, 0), items(17, 1), items(19, 2))


TASK = Classification(Drawn(), length=30, sequences=8, evaluation_batch=5)
PAIRS = PairClassification(DrawnPairs(), length=30, sequences=8, evaluation_batch=5)
MASKED = MaskedModelling(Drawn(), length=30, sequences=8, evaluation_batch=5, mask=19, share=0.3)


def test_a_batch_is_the_sequences_of_its_step():
    (tokens,), labels = TASK.batch(3, 0, 1)
    items, train = TASK.epochs.at(3), TASK.splits.train
    assert tokens.tolist() == train.sequences.padded(items, 30).tolist()
    assert labels.tolist() == train.labels[items].tolist()
    assert TASK.size(TASK.batch(3, 0, 1)) == train.lengths[items].clip(max=30).sum()


def test_lengths_are_rounded_up():
    lengths = {replace(TASK, multiple=7).batch(step, 0, 1)[0][0].shape[1] for step in range(5)}
    assert lengths <= {7, 14, 21, 28, 30}
    assert {replace(TASK, multiple=30).batch(step, 0, 1)[0][0].shape[1] for step in range(5)} == {30}


def test_parts_are_disjoint_and_make_the_batch():
    whole = TASK.batch(2, 0, 1)[1]
    assert torch.equal(torch.cat([TASK.batch(2, part, 4)[1] for part in range(4)]), whole)


def test_the_order_has_a_seed():
    assert TASK.batch(0, 0, 1)[1].tolist() != replace(TASK, order=1).batch(0, 0, 1)[1].tolist()


def test_a_pair_has_both_documents():
    (first, second), labels = PAIRS.batch(1, 0, 1)
    items, train = PAIRS.epochs.at(1), PAIRS.splits.train
    for row_a, row_b, (a, b) in zip(first, second, train.pairs[items], strict=True):
        assert row_a[row_a != 0].tolist() == train.documents[a][:30].tolist()
        assert row_b[row_b != 0].tolist() == train.documents[b][:30].tolist()
    assert labels.tolist() == train.labels[items].tolist()


BY_LENGTH = list(in_order(TASK.splits.test.lengths.clip(max=30), 5, 0, 1))


class Oracle(nn.Module):
    """Finds the label from the first token, but for the sequences whose first token is 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, tokens):
        scores = F.one_hot(tokens[:, 0].long() % 3, 3).float()
        return torch.where(tokens[:, :1] == 1, 1 - scores, scores) + self.weight


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_accuracy_is_the_share_of_labels_found(parts):
    test = TASK.splits.test
    right = sum(int(test.sequences[i][0] != 1) for i in range(len(test)))
    found = [shares(TASK, Oracle(), part, parts, "test") for part in range(parts)]
    assert sum(f["accuracy"][0] for f in found) == right < 19
    assert sum(f["accuracy"][1] for f in found) == 19
    dev = shares(TASK, Oracle(), 0, 1)
    assert dev["accuracy"][1] == dev["loss"][1] == 17


@pytest.mark.parametrize("alike", [False, True])
def test_an_evaluation_pads_as_training_does_where_that_matters(alike):
    model, seen = Oracle(), []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    shares(replace(TASK, multiple=30, pads_alike=alike), model, split="test")
    longest = [30] * 4 if alike else [max(TASK.splits.test.lengths[items].clip(max=30)) for items in BY_LENGTH]
    assert seen == longest and (alike or len(set(seen)) > 1)


def test_how_many_are_evaluated_at_once_changes_nothing():
    torch.manual_seed(0)
    model = MODEL.build().double().eval()
    found = [shares(replace(TASK, evaluation_batch=n), model, 0, 1) for n in (1, 4, 100)]
    assert len({f["accuracy"] for f in found}) == 1
    assert max(f["loss"][0] for f in found) == pytest.approx(min(f["loss"][0] for f in found), abs=1e-4)


def test_the_loss_is_that_of_the_labels():
    torch.manual_seed(0)
    model = MODEL.build().eval()
    (tokens,), labels = batch = TASK.batch(0, 0, 1)
    loss, carry = TASK.loss(model, batch, None)
    assert carry is None
    torch.testing.assert_close(loss, F.cross_entropy(model(tokens), labels))


def test_hidden_tokens_are_told_apart_from_padding():
    shown, hidden = MASKED.batch(0, 0, 1)
    whole = torch.where(hidden != 0, hidden, shown)
    assert torch.equal(whole, TASK.batch(0, 0, 1)[0][0])
    assert torch.equal(shown == 19, hidden != 0)
    share = (hidden != 0).sum() / (whole != 0).sum()
    assert 0.2 < share < 0.4
    assert torch.equal(shown, MASKED.batch(0, 0, 1)[0]) and not torch.equal(shown, MASKED.batch(5, 0, 1)[0])


def test_the_masked_loss_is_of_hidden_tokens_alone():
    torch.manual_seed(0)
    model = MaskedConfig(**vars(MODEL)).build().eval()
    shown, hidden = batch = MASKED.batch(0, 0, 1)
    at = hidden != 0
    scores = model(shown)[at]
    torch.testing.assert_close(MASKED.loss(model, batch, None)[0], F.cross_entropy(scores, hidden[at].long()))
    found = MASKED.restored(model, batch)
    assert found[1] == at.sum() and found[2] == (scores.argmax(1) == hidden[at]).sum()


def test_masked_parts_add_up_and_the_same_is_hidden_every_time():
    torch.manual_seed(0)
    model = MaskedConfig(**vars(MODEL)).build().eval()
    whole = shares(MASKED, model, 0, 1)
    parts = [shares(MASKED, model, part, 2) for part in range(2)]
    assert whole == shares(MASKED, model, 0, 1)
    for name in whole:
        assert sum(p[name][1] for p in parts) == whole[name][1]
        assert sum(p[name][0] for p in parts) == pytest.approx(whole[name][0], rel=1e-5)


RUNS = {
    "classify": Run("classify", MODEL, TASK, 12),
    "pairs": Run("pairs", PairConfig(**{**vars(MODEL), "classes": 2}), PAIRS, 8),
    "masked": Run("masked", MaskedConfig(**vars(MODEL)), MASKED, 8),
}


@pytest.mark.parametrize("name", RUNS)
def test_it_is_learned_and_goes_on_where_it_stopped(name, tmp_path):
    run = replace(RUNS[name], optimizer=AdamW(lr=0.01), log_every=4, evaluate_every=4, save_every=4)
    do(run, tmp_path / "whole")
    do(replace(run, steps=4), tmp_path / "parts")
    do(run, tmp_path / "parts", resume=True)
    whole = outcome(run, tmp_path / "whole")
    assert whole["weights"] == outcome(run, tmp_path / "parts")["weights"]
    first, *_, last = [line["loss"] for line in whole["log"] if "loss" in line]
    assert last < first


def test_a_classifier_starts_from_a_masked_model(tmp_path):
    """All but the heads."""
    before = replace(RUNS["masked"], steps=3)
    run = replace(RUNS["classify"], steps=1, optimizer=AdamW(lr=0.0, weight_decay=0.0), starts_from=before)
    do(run, tmp_path)
    old, new = (weights(r, tmp_path) for r in (before, run))
    assert {name for name in old if name not in new} == {"tokens.weight", "tokens.bias"}
    shared = [name for name in new if name in old]
    assert len(shared) == len(new) - 4
    assert all(torch.equal(old[name], new[name]) for name in shared)


@pytest.mark.parametrize("name", ["length", "sequences", "multiple", "evaluation_batch"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        replace(TASK, **{name: 0})


def test_a_share_outside_is_refused():
    with pytest.raises(ValueError, match=r"share must lie between 0 and 1, got 1\.0"):
        replace(MASKED, share=1.0)
