"""Laws of the sequence models: padding changes nothing, CLS stands for all, pairs are read alike, saved and loaded."""

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import pytest
import torch
from torch import nn

from longshort.models.sequence import (
    MaskedConfig,
    PairClassifier,
    PairConfig,
    SequenceClassifier,
    SequenceConfig,
    mean,
)
from longshort.nn.spec import Full, LongShort

ATTENTIONS = {
    "long-short": LongShort(4, 3),
    "projection alone": LongShort(0, 3),
    "window alone": LongShort(4, 0),
    "rotary": LongShort(4, 3, rotary=True),
    "full": Full(),
    "full, rotary": Full(rotary=True),
}
TINY = SequenceConfig(
    LongShort(4, 3), classes=5, length=40, layers=2, width=16, heads=2, feedforward=24, head=12, vocabulary=20
)
MASKED = MaskedConfig(**vars(TINY))
each = pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
pooled = pytest.mark.parametrize("pooling", ["cls", "mean"])


def model_of(config=TINY, seed=0, **changes):
    """Float64, in eval mode, with weights large enough that everything matters."""
    torch.manual_seed(seed)
    model = replace(config, **changes).build().double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3) if p.numel() else None
    return model


def tokens(n, batch=3, seed=0):
    return torch.randint(1, TINY.vocabulary, (batch, n), generator=torch.Generator().manual_seed(seed))


@pooled
@each
@pytest.mark.parametrize("n", [1, 7, 33])
def test_padding_changes_nothing(attention, n, pooling):
    model = model_of(attention=attention, pooling=pooling)
    x = tokens(n)
    padded = torch.cat([x, torch.zeros(3, 40 - n, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(padded), model(x), atol=1e-12, rtol=0)


@pooled
@each
def test_a_batch_is_its_sequences(attention, pooling):
    model = model_of(attention=attention, pooling=pooling)
    x = tokens(20)
    x[1, 8:] = 0
    alone = torch.cat([model(x[:1]), model(x[1:2, :8]), model(x[2:])])
    torch.testing.assert_close(model(x), alone, atol=1e-12, rtol=0)


@pooled
@each
def test_every_token_and_every_weight_matters(attention, pooling):
    model = model_of(attention=attention, pooling=pooling)
    model.encoder.embedding.register_forward_hook(lambda module, given, out: seen.append(out) or out.retain_grad())
    seen = []
    model(tokens(24)).square().sum().backward()
    assert (seen[0].grad.abs().sum(dim=2) > 0).all()
    unused = [name for name, p in model.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())]
    assert unused == ([n for n, _ in model.named_parameters() if "norm.global_" in n] if attention.__dict__.get(
        "rank") == 0 else [])  # fmt: skip


@pooled
@each
def test_the_order_of_tokens_matters(attention, pooling):
    learned = model_of(attention=attention, pooling=pooling)
    x = tokens(24)
    assert not torch.allclose(learned(x), learned(x.flip(1)))


def test_the_mean_is_over_real_tokens_and_there_is_no_cls():
    model = model_of(pooling="mean")
    assert not any("cls" in name for name in model.state_dict())
    assert [block.attention.global_tokens for block in model.encoder.blocks] == [0, 0]
    x = tokens(9)
    x[0, 4:] = 0
    features = model.encoder(x)
    assert features.shape == (3, 9, 16)
    expected = torch.stack([features[0, :4].mean(0), features[1].mean(0), features[2].mean(0)])
    torch.testing.assert_close(model.encoder(x, pooled=True), expected)
    torch.testing.assert_close(model(x), model.head(expected))


def test_the_mean_does_not_overflow_in_16_bits():
    x = torch.full((1, 4_000, 2), 20.0, dtype=torch.float16)
    assert mean(x, torch.ones(1, 4_000, dtype=torch.bool)).tolist() == [[20.0, 20.0]]


@pooled
def test_a_masked_model_has_a_guess_for_each_token(pooling):
    model = model_of(replace(MASKED, pooling=pooling))
    x = tokens(9)
    assert model(x).shape == (3, 9, TINY.vocabulary)
    torch.testing.assert_close(model(x), model.tokens(model.encoder(x)[:, int(pooling == "cls") :]))


def test_without_positions_full_attention_knows_no_order():
    model = model_of(attention=Full(), positions="none")
    x = tokens(24)
    torch.testing.assert_close(model(x), model(x.flip(1)), atol=1e-12, rtol=0)
    model = model_of(attention=Full(rotary=True), positions="none")
    assert not torch.allclose(model(x), model(x.flip(1)))


def test_all_padding_gives_numbers():
    x = torch.zeros(2, 9, dtype=torch.long)
    for attention, pooling in product(ATTENTIONS.values(), ["cls", "mean"]):
        model = model_of(attention=attention, pooling=pooling)
        scores = model(x)
        scores.sum().backward()
        assert scores.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_cls_token_is_global_and_in_the_last_layer_alone():
    model = model_of()
    assert [block.attention.global_tokens for block in model.encoder.blocks] == [0, 1]
    assert model.encoder(tokens(9)).shape == (3, 10, 16)


@dataclass(frozen=True)
class Cuts:
    """An attention that computes all outputs, and leaves away what is not wanted."""

    counts_padding: ClassVar[bool] = False

    def build(self, width, heads, max_length, **_):
        class Means(nn.Linear):
            def forward(self, x, mask=None, count=None):
                return super().forward((x * mask[..., None]).cumsum(1) + x.flip(1))[:, :count]

        return Means(width, width)


@pytest.mark.parametrize("attention", [*ATTENTIONS.values(), Cuts()], ids=[*ATTENTIONS, "cuts"])
def test_a_classifier_gives_what_all_features_would(attention):
    """And so do its gradients: what it leaves out is what no score depends on."""
    model = model_of(attention=attention)
    x = tokens(24)
    x[1, 8:] = 0
    scores, expected = model(x), model.head(model.encoder(x)[:, 0])
    torch.testing.assert_close(scores, expected, atol=1e-12, rtol=0)
    parameters = [p for p in model.parameters() if p.numel()]
    found, wanted = (
        torch.autograd.grad(s.square().sum(), parameters, allow_unused=True, materialize_grads=True)
        for s in (scores, expected)
    )
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


@each
def test_a_classifier_leaves_out_the_last_layers_other_tokens(attention):
    model = model_of(attention=attention)
    last = model.encoder.blocks[-1]
    seen = []
    for layer in (last.attention.out, last.feedforward, model.encoder.norm):
        layer.register_forward_hook(lambda module, given, out: seen.append(out.shape[1]))
    model(tokens(24))
    assert seen == [1, 1, 1]


def test_the_papers_sizes():
    model = SequenceClassifier(SequenceConfig(LongShort(8, 32), classes=10))
    parts = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert len(model.encoder.blocks) == 2
    assert parts["encoder.embedding.weight"] == (512, 64) and parts["encoder.positions.weight"] == (2048, 64)
    assert parts["encoder.blocks.1.feedforward.inner.weight"] == (128, 64)
    assert parts["head.0.weight"] == (128, 64) and parts["head.2.weight"] == (10, 128)
    pair = PairClassifier(PairConfig(LongShort(8, 32), classes=2))
    assert pair.head[0].weight.shape == (128, 4 * 64)


def test_a_pair_is_read_by_one_encoder():
    model = model_of(PairConfig(**vars(TINY)))
    a, b = tokens(9, seed=1), tokens(14, seed=2)
    e, f = (model.encoder(x)[:, 0] for x in (a, b))
    torch.testing.assert_close(model(a, b), model.head(torch.cat([e, f, e * f, e - f], dim=1)))
    assert not torch.allclose(model(a, b), model(b, a))


def test_the_masked_model_scores_every_place():
    model = model_of(MaskedConfig(**vars(TINY)))
    assert model(tokens(11)).shape == (3, 11, 20)


@each
def test_saved_and_loaded(attention, tmp_path, capsys):
    model = SequenceClassifier(replace(TINY, attention=attention)).eval()
    model.save_pretrained(tmp_path)
    again = SequenceClassifier.from_pretrained(tmp_path).eval()
    assert again.config == model.config
    assert torch.equal(again(tokens(9)), model(tokens(9)))
    assert json.loads((tmp_path / "config.json").read_text())["attention"]["type"].endswith(type(attention).__name__)


@dataclass(frozen=True)
class Own:
    """An attention of a user's, to nothing but the token itself."""

    counts_padding: ClassVar[bool] = False

    def build(self, width, heads, max_length, *, dropout=0.0, global_tokens=0):
        return Alone(width)


class Alone(nn.Linear):
    def __init__(self, width):
        super().__init__(width, width)

    def forward(self, x, mask=None, count=None):
        return super().forward(x[:, :count])


def test_an_attention_of_ones_own_is_read_with_its_config(tmp_path, capsys):
    model = SequenceClassifier(replace(TINY, attention=Own())).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config.json.*'.*test_sequence:Own'"):
        SequenceClassifier.from_pretrained(tmp_path)
    again = SequenceClassifier.from_pretrained(tmp_path, config=model.config).eval()
    assert torch.equal(again(tokens(9)), model(tokens(9)))


def test_dropout_is_for_training():
    model = SequenceClassifier(replace(TINY, dropout=0.5, attention_dropout=0.5))
    x = tokens(20)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(classes=0), "classes must be a whole number of at least 1, got 0"),
        (dict(layers=1.5), "layers must be a whole number"),
        (dict(width=15), "width 15 is not divisible by heads 2"),
        (dict(positions="some"), "positions must be 'learned' or 'none', got 'some'"),
        (dict(pooling="max"), "pooling must be 'cls' or 'mean', got 'max'"),
        (dict(dropout=1.0), "dropout must be at least 0 and below 1, got 1.0"),
        (dict(attention_dropout=-0.1), "attention_dropout must be at least 0"),
        (dict(attention=LongShort(0, 0)), "window and rank are both 0"),
    ],
)
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(TINY, **changes).build()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.ones(2, 41, dtype=torch.long), "sequences of 41 tokens are longer than the model's 40"),
        (torch.ones(2, 0, dtype=torch.long), "at least 1"),
        (torch.ones(2, 5), "whole numbers"),
        (torch.ones(5, dtype=torch.long), "whole numbers"),
        (torch.tensor([[3, 20]]), "tokens must be numbers from 0 to 19, and these are from 3 to 20"),
        (torch.tensor([[-1, 3]]), "tokens must be numbers from 0 to 19, and these are from -1 to 3"),
    ],
)
def test_bad_tokens_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        model_of()(given)
