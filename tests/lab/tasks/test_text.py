"""Texts as pretrained encoders take them: losses are those that transformers finds, and special tokens stay."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from evaluations import shares
from tiny_encoders import SENTENCES, Pretrained, tiny_checkpoint
from training import do, outcome, weights

from longshort.lab.data.labelled import Labelled, LabelledSplits, Sequences
from longshort.lab.data.tokenised import Special, Tokenised
from longshort.lab.tasks import MaskedText, TextClassification
from longshort.lab.train import AdamW, Run

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ["bert", "roberta"]


@dataclass(frozen=True)
class Reviews:
    """A label that a word tells, in texts of 1 to 60 words."""

    name = "reviews"
    classes = 2

    def splits(self):
        def some(count, seed):
            random = np.random.default_rng(seed)
            texts = [
                " ".join([("bad", "good")[i % 2], *random.choice(SENTENCES[2].split(), random.integers(0, 60))])
                for i in range(count)
            ]
            return Labelled(Sequences.of_bytes(text.encode() for text in texts), np.arange(count) % 2)

        return LabelledSplits(some(40, 0), some(17, 1), some(19, 2))


@dataclass(frozen=True)
class Drawn:
    """As if a tokenizer had made them: 1 opens, 2 closes, 0 pads, 3 is unknown, 4 the mask; and 95 others."""

    texts: int = 40
    longest: int = 40

    name = "drawn"
    classes = 2
    special = Special(1, 2, 0, 4, (0, 1, 2, 3, 4), 100)

    def splits(self):
        random = np.random.default_rng(0)
        within = [random.integers(3, 100, random.integers(0, self.longest)) for _ in range(self.texts)]
        made = Sequences.of((np.array([1, *np.where(t == 4, 5, t), 2]) + 1 for t in within), np.int32)
        items = Labelled(made, np.zeros(self.texts, np.int64))
        return LabelledSplits(items, items, items)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of models by kind and head, and texts that were read with their tokenizers; in a cache of their own."""
    out = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(out / "cache"))
        for kind in KINDS:
            for head in ("ForMaskedLM", "ForSequenceClassification"):
                changes = dict(hidden_dropout_prob=0.1, classifier_dropout=0.1)
                tiny_checkpoint(out / f"{kind}{head}", kind, head, **changes)
        yield lambda kind, head="ForMaskedLM": out / f"{kind}{head}"


def classification(folder, **changes):
    task = TextClassification(Tokenised(Reviews(), folder), length=40, sequences=8, evaluation_batch=5)
    return replace(task, **changes)


def masked(folder, **changes):
    return replace(MaskedText(Tokenised(Reviews(), folder), length=40, sequences=8, evaluation_batch=5), **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_what_the_tokenizer_would_give(published, kind):
    """Cut by it, too."""
    task = classification(published(kind), sequences=40)
    (tokens, real), labels = task.batch(0, 0, 1)
    items = task.epochs.at(0)
    texts = [bytes((Reviews().splits().train.sequences[i] - 1).astype(np.uint8)).decode() for i in items]
    known = task.source.reader.made(texts, truncation=True, max_length=40, padding=True, return_tensors="pt")
    assert (task.splits.train.lengths[items] > 40).any() and (task.splits.train.lengths[items] < 40).any()
    assert torch.equal(tokens, known["input_ids"]) and torch.equal(real, known["attention_mask"])
    assert labels.tolist() == (items % 2).tolist()
    assert task.size(task.batch(0, 0, 1)) == real.sum() == task.splits.train.lengths[items].clip(max=40).sum()


def test_lengths_are_rounded_up_with_the_padding_of_the_tokenizer(published):
    task = classification(published("roberta"), length=64, multiple=64)
    (tokens, real), _ = task.batch(0, 0, 1)
    assert tokens.shape == real.shape == (8, 64)
    assert (tokens[real == 0] == 1).all() and (tokens[real == 1] != 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_labels_is_that_of_transformers(published, kind):
    folder = published(kind, "ForSequenceClassification")
    task, model = classification(folder), Pretrained(folder, "ForSequenceClassification").build().eval()
    (tokens, real), labels = batch = task.batch(0, 0, 1)
    loss, carry = task.loss(model, batch, None)
    torch.testing.assert_close(loss, model(tokens, real, labels=labels).loss)
    assert carry is None
    with torch.no_grad():
        right = 0
        for i in range(len(task.splits.dev)):
            given, label = task.read(task.splits.dev, np.array([i]))
            right += int(model(*given).logits.argmax() == label)
    assert shares(task, model, 0, 1)["accuracy"] == (right, 17)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_hidden_tokens_is_that_of_transformers(published, kind):
    task, model = masked(published(kind)), Pretrained(published(kind)).build().eval()
    tokens, real, at, hidden = batch = task.batch(0, 0, 1)
    labels = torch.full_like(tokens, -100)
    labels.view(-1)[at] = hidden
    known = model(tokens, real, labels=labels)
    loss, carry = task.loss(model, batch, None)
    torch.testing.assert_close(loss, known.loss)
    assert carry is None and task.size(batch) == real.sum()
    total, count, found = task.restored(model, batch)
    assert count == len(at) > 0 and found == (known.logits.argmax(2) == labels).sum()
    torch.testing.assert_close(total, known.loss * count)


def test_what_is_hidden_stood_there_and_all_else_is_shown():
    task = MaskedText(Drawn(), length=30, sequences=8, share=0.4)
    whole = TextClassification(Drawn(), length=30, sequences=8)
    tokens, real, at, hidden = task.batch(3, 0, 1)
    (known, known_real), _ = whole.batch(3, 0, 1)
    before = tokens.clone()
    before.view(-1)[at] = hidden
    assert torch.equal(before, known) and torch.equal(real, known_real) and not torch.equal(tokens, known)
    again, another = task.batch(3, 0, 1), task.batch(4, 0, 1)
    assert torch.equal(tokens, again[0]) and torch.equal(at, again[2]) and not torch.equal(hidden, another[3])


def test_of_hidden_tokens_most_are_masked_some_exchanged_and_some_stay():
    task = MaskedText(Drawn(texts=2_000, longest=100), length=102, sequences=2_000)
    tokens, real, at, hidden = task.batch(0, 0, 1)
    words = real.sum() - 2 * len(tokens)
    assert len(at) / words == pytest.approx(0.15, abs=0.006)  # less those that are unknown, a 96th
    assert hidden.min() > 4
    shown = tokens.view(-1)[at]
    masks, stays = shown == 4, shown == hidden
    exchanged = shown[~masks & ~stays]
    shares = [float(each.float().mean()) for each in (masks, stays, ~masks & ~stays)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.012)
    assert exchanged.min() > 4 and len(exchanged.unique()) == 95  # any word
    assert (tokens[real == 0] == 0).all()


def test_no_word_is_no_loss():
    """Of texts without any, all is special."""
    task = MaskedText(Drawn(texts=8, longest=1), length=30, sequences=8)
    tokens, _, at, _ = batch = task.batch(0, 0, 1)
    assert tokens.shape == (8, 2) and len(at) == 0

    class Model(torch.nn.Linear):
        def forward(self, tokens, real):
            return super().forward(tokens[..., None].float())

    assert task.loss(Model(1, 100), batch, None)[0] == 0


def test_parts_add_up_and_the_same_is_hidden_every_time(published):
    task, model = masked(published("bert"), evaluation_count=13), Pretrained(published("bert")).build().eval()
    whole = shares(task, model, 0, 1)
    assert whole == shares(task, model, 0, 1) and set(whole) == {"loss", "restored"}
    parts = [shares(task, model, part, 2) for part in range(2)]
    for name, (total, count) in whole.items():
        assert sum(p[name][1] for p in parts) == count
        assert sum(p[name][0] for p in parts) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make, head", [(classification, "ForSequenceClassification"), (masked, "ForMaskedLM")])
def test_it_is_learned_and_goes_on_where_it_stopped(published, kind, make, head, tmp_path):
    folder = published(kind, head)
    run = Run("text", Pretrained(folder, head), make(folder), 12, optimizer=AdamW(lr=0.003), log_every=6)
    do(run, tmp_path / "whole")
    do(replace(run, steps=6), tmp_path / "parts")
    do(run, tmp_path / "parts", resume=True)
    whole = outcome(run, tmp_path / "whole")
    assert whole["weights"] == outcome(run, tmp_path / "parts")["weights"]
    first, last = [line["loss"] for line in whole["log"] if "loss" in line]
    assert last < first


@dataclass(frozen=True)
class Classifier(Pretrained):
    head: str = "ForSequenceClassification"


def test_a_classifier_starts_from_a_masked_model(published, tmp_path):
    """All but the heads."""
    before = Run("masked", Pretrained(published("roberta")), masked(published("roberta")), 3)
    model = Classifier(published("roberta", "ForSequenceClassification"))
    run = Run("labels", model, classification(model.folder), 1, optimizer=AdamW(lr=0.0), starts_from=before)
    do(run, tmp_path)
    old, new = (weights(each, tmp_path) for each in (before, run))
    shared = [name for name in new if name.startswith("roberta.")]
    assert len(shared) == len(new) - 4 and all(torch.equal(old[name], new[name]) for name in shared)
