"""The sequence models in JAX: with PyTorch's weights they are PyTorch's models, and the other way round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
from flax import nnx

import longshort.jax as lj
from longshort.jax.specs import orthogonal
from longshort.models.sequence import PairClassifier, PairConfig, SequenceClassifier, SequenceConfig
from longshort.nn.spec import Full, LongShort

SMALL = dict(classes=5, length=90, width=24, heads=3, feedforward=32, head=16, vocabulary=40)
ATTENTIONS = {
    "8,4": (LongShort(8, 4), lj.LongShort(8, 4)),
    "0,4": (LongShort(0, 4), lj.LongShort(0, 4)),
    "8,0": (LongShort(8, 0), lj.LongShort(8, 0)),
    "no DualLN": (LongShort(8, 4, dual_norm=False), lj.LongShort(8, 4, dual_norm=False)),
    "full": (Full(), lj.Full()),
}


def tokens_of(seed=0, n=77):
    """Three sequences of several lengths, the last with nothing in it."""
    tokens = np.random.default_rng(seed).integers(1, 40, (3, n))
    tokens[1, 31:] = tokens[2] = 0
    return tokens


def both(attention, classes=(SequenceClassifier, lj.SequenceClassifier, SequenceConfig), **changes):
    """The model of PyTorch, and in JAX one with other weights."""
    theirs, ours = ATTENTIONS[attention]
    torch.manual_seed(0)
    pytorch = classes[0](classes[2](theirs, **SMALL, **changes)).eval()
    model = classes[1](lj.SequenceConfig(ours, **SMALL, **changes), rngs=nnx.Rngs(1))
    return pytorch, model


def scores_and_gradients(model, *tokens):
    def total(model, *tokens):
        scores = model(*tokens)
        return (scores**2).sum(), scores

    (_, scores), grads = nnx.jit(nnx.value_and_grad(total, has_aux=True))(model, *map(jnp.asarray, tokens))
    return np.asarray(scores), lj.to_torch(grads)


def assert_same(pytorch, model, *tokens):
    scores, grads = scores_and_gradients(model, *tokens)
    expected = pytorch(*map(torch.from_numpy, tokens))
    np.testing.assert_allclose(scores, expected.detach(), rtol=0, atol=1e-5)
    expected.pow(2).sum().backward()
    assert set(grads) == {name for name, _ in pytorch.named_parameters()}
    for name, p in pytorch.named_parameters():
        given = np.zeros(p.shape) if p.grad is None else p.grad
        np.testing.assert_allclose(grads[name], given, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_with_the_weights_of_pytorch_it_is_its_model(attention, pooling):
    pytorch, model = both(attention, pooling=pooling)
    assert lj.from_torch(pytorch, model) is model
    assert_same(pytorch, model, tokens_of())


def test_pairs():
    pytorch, model = both("8,4", (PairClassifier, lj.PairClassifier, PairConfig))
    lj.from_torch(pytorch.state_dict(), model)
    assert_same(pytorch, model, tokens_of(), tokens_of(1, 50))


def test_weights_go_back():
    pytorch, model = both("8,4")
    made = lj.to_torch(model, pytorch)
    assert set(made) == set(pytorch.state_dict()) and all(value.dtype == np.float32 for value in made.values())
    assert_same(pytorch, model, tokens_of())
    again = lj.from_torch(safetensors.numpy.load(safetensors.numpy.save(made)), both("8,4")[1])
    for a, b in zip(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(again)), strict=True):
        assert jnp.issubdtype(a.dtype, jax.dtypes.prng_key) or (a == b).all()


def test_no_weights_are_shared():
    pytorch, model = both("8,4")
    for change in (lambda: lj.from_torch(pytorch, model), lambda: lj.to_torch(model, pytorch)):
        change()
        before = lj.to_torch(model)
        with torch.no_grad():
            for p in pytorch.parameters():
                p.add_(1.0)
        for name, value in lj.to_torch(model).items():
            np.testing.assert_array_equal(value, before[name])


def test_weights_in_half_precision_are_read():
    pytorch, model = both("8,4")
    lj.from_torch(pytorch.bfloat16(), model)
    assert model.encoder.cls.dtype == jnp.float32
    np.testing.assert_array_equal(model.encoder.cls[...], pytorch.encoder.cls.detach().float())


def test_weights_that_do_not_fit_are_refused_and_change_nothing():
    pytorch, model = both("8,4")
    before = lj.to_torch(model)
    state = pytorch.state_dict()
    for changed, message in (
        ({name: t for name, t in state.items() if name != "head.0.bias"}, "head.0.bias missing, none of no place"),
        ({**state, "poem": state["head.0.bias"]}, "none missing, poem of no place"),
        ({**state, "head.0.bias": state["head.2.bias"]}, r"head.0.bias is \(5,\) there and \(16,\) here"),
    ):
        with pytest.raises(ValueError, match=message):
            lj.from_torch(changed, model)
    for name, value in lj.to_torch(model).items():
        np.testing.assert_array_equal(value, before[name])


SPECS = [lj.LongShort(8, 4), lj.Full(), lj.Local(8), lj.Linformer(6), lj.Performer(16)]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_padding_changes_no_attention(spec):
    model = lj.SequenceClassifier(lj.SequenceConfig(spec, **SMALL, pooling="mean"), rngs=nnx.Rngs(0))
    scores = nnx.jit(lambda model, tokens: model(tokens))
    tokens = tokens_of()[:2]
    cut = scores(model, jnp.asarray(tokens[1:, :31]))
    np.testing.assert_allclose(scores(model, jnp.asarray(tokens))[1:], cut, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS[2:], ids=str)
def test_what_it_is_compared_with_has_gradients_everywhere(spec):
    model = lj.SequenceClassifier(lj.SequenceConfig(spec, **SMALL, pooling="mean"), rngs=nnx.Rngs(0))
    scores, grads = scores_and_gradients(model, tokens_of())
    assert np.isfinite(scores).all()
    for name, gradient in grads.items():
        assert np.isfinite(gradient).all() and (name.endswith("key.bias") or np.abs(gradient).max() > 0), name


def test_random_features_come_to_full_attention():
    """With 16 times as many of them, about 4 times nearer; four draws of each."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 50, 24)), jnp.float32)
    mask = jnp.arange(50) < jnp.array([[50], [20]])
    run = nnx.jit(lambda layer: layer(x, mask))
    full, errors = run(lj.Full().build(lj.Slot(24, 3, 50), nnx.Rngs(0))), []
    for features in (1024, 16384):
        layer = lj.Performer(features).build(lj.Slot(24, 3, 50), nnx.Rngs(0))
        off = []
        for key in jax.random.split(jax.random.key(0), 4):
            layer.features[...] = orthogonal(key, features, 8)
            off.append(np.linalg.norm((run(layer) - full)[mask]) / np.linalg.norm(full[mask]))
        errors.append(np.sqrt(np.mean(np.square(off))))
    assert errors[1] < 0.4 * errors[0] and errors[1] < 0.02


@pytest.mark.parametrize("spec", SPECS[:4], ids=str)
def test_weights_of_attention_are_dropped_in_training(spec):
    """By themselves, and so that the mean stays."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 40, 24)), jnp.float32)
    layer = spec.build(lj.Slot(24, 3, 40, dropout=0.3), nnx.Rngs(0))
    graph, state = nnx.split(layer)

    def dropped(key):
        layer = nnx.merge(graph, state, copy=True)
        nnx.reseed(layer, default=key)
        return layer(x)

    found = jax.jit(lambda keys: jax.lax.map(dropped, keys))(jax.random.split(jax.random.key(0), 300))
    layer.eval()
    whole = nnx.jit(lambda layer: layer(x))(layer)
    assert np.abs(found[0] - found[1]).max() > 1e-2
    assert np.linalg.norm(found.mean(0) - whole) < 0.15 * np.linalg.norm(found[0] - whole)


def test_what_attention_adds_is_dropped():
    """A feed-forward layer that adds nothing leaves attention alone."""
    model = lj.SequenceClassifier(lj.SequenceConfig(lj.Full(), **SMALL, dropout=0.5), rngs=nnx.Rngs(0))
    block = model.encoder.blocks[0]
    for part in (block.feedforward.out.kernel, block.feedforward.out.bias):
        part[...] = jnp.zeros_like(part[...])
    x, mask = jnp.ones((1, 5, 24)), jnp.ones((1, 5), bool)
    first, second = block(x, mask), block(x, mask)
    assert (first != second).any() and ((first == x) | (first == second)).any()


def test_weights_begin_as_pytorchs_do():
    pytorch, model = both("8,4")
    made = lj.to_torch(model)
    for name, p in pytorch.named_parameters():
        if p.numel() >= 500:
            assert made[name].std() == pytest.approx(p.detach().numpy().std(), rel=0.1), name


def test_dropout_is_for_training_and_half_precision_for_computing():
    config = lj.SequenceConfig(lj.LongShort(8, 4), **SMALL, dropout=0.3, attention_dropout=0.3, dtype="bfloat16")
    model, tokens = lj.SequenceClassifier(config, rngs=nnx.Rngs(0)), jnp.asarray(tokens_of())
    run = nnx.jit(lambda model, tokens: model(tokens))
    assert (run(model, tokens) != run(model, tokens)).any()
    model.eval()
    assert (run(model, tokens) == run(model, tokens)).all() and run(model, tokens).dtype == jnp.bfloat16


def test_bad_input_is_refused():
    model = both("8,4")[1]
    for tokens, message in (
        (np.ones((2, 91), int), "91 tokens are longer than the model's 90"),
        (np.ones((2, 9)), "tokens must be whole numbers"),
        (np.ones(9, int), "tokens must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            model(jnp.asarray(tokens))
    with pytest.raises(ValueError, match="classes must be a whole number of at least 1"):
        lj.SequenceConfig(lj.Full(), classes=0)
    for changes, message in {
        "dropout": (dict(dropout=1.5), "dropout must be at least 0 and below 1, got 1.5"),
        "dtype": (dict(dtype="bf16"), "dtype must be float32, bfloat16"),
    }.values():
        with pytest.raises(ValueError, match=message):
            lj.SequenceConfig(lj.Full(), classes=2, **changes)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        lj.Local(0).build(lj.Slot(24, 3, 9), nnx.Rngs(0))
    with pytest.raises(ValueError, match="cuDNN's attention knows no dropout"):
        lj.Full("cudnn").build(lj.Slot(24, 3, 9, dropout=0.1), nnx.Rngs(0))
    for rotary in (LongShort(8, 4, rotary=True), Full(rotary=True)):
        with pytest.raises(ValueError, match="rotary positions, which there are none of here"):
            lj.from_torch(SequenceClassifier(SequenceConfig(rotary, **SMALL)), model)
    with pytest.raises(ValueError, match="pooling must be"):
        lj.SequenceConfig(lj.Full(), classes=2, pooling="max")
