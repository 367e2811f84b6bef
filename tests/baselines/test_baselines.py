"""Laws of the adapters: lengths, padding, gradients, precision, missing packages; and the attentions they come to."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from longshort.baselines import (
    BigBird,
    LinearTransformer,
    Linformer,
    LinformerWindow,
    Longformer,
    Nystromformer,
    Performer,
    Reformer,
    Sinkhorn,
)
from longshort.nn.spec import Full, LongShort

# performer-pytorch compares versions with distutils when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning")

LENGTH = 70
SPECS = [
    Linformer(rank=6),
    Performer(features=10),
    Nystromformer(landmarks=8),
    Reformer(hashes=2, chunk=4),
    LinearTransformer(),
    Sinkhorn(bucket=8),
    Longformer(window=8),
    BigBird(block=4, random_blocks=1),
    LinformerWindow(window=4, rank=3),
]
PACKAGES = {
    Linformer: "linformer",
    Performer: "performer_pytorch",
    Nystromformer: "nystrom_attention",
    Reformer: "transformers",
    LinearTransformer: "performer_pytorch",
    Sinkhorn: "sinkhorn_transformer",
    Longformer: "transformers",
    BigBird: "transformers",
}

each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)


def built(spec, **keywords):
    torch.manual_seed(0)
    return spec.build(16, 2, LENGTH, **keywords)


def seeded(layer, x, mask=None, count=None):
    """Reformer's hashes and Sinkhorn's noise are drawn at every call."""
    torch.manual_seed(1)
    return layer(x, mask, count)


@each_spec
@pytest.mark.parametrize("tokens", [3, 8, 33, 69, LENGTH])
@pytest.mark.parametrize("training", [True, False])
def test_any_length_up_to_the_longest(spec, tokens, training):
    layer = built(spec, global_tokens=2).train(training)
    y = layer(torch.randn(2, tokens, 16))
    assert y.shape == (2, tokens, 16)
    assert y.isfinite().all()


@each_spec
@pytest.mark.parametrize("count", [1, 5])
def test_what_the_first_tokens_come_to_alone(spec, count):
    layer, x = built(spec, global_tokens=2).eval(), torch.randn(2, 33, 16)
    torch.testing.assert_close(seeded(layer, x, count=count), seeded(layer, x)[:, :count])


@pytest.mark.parametrize("spec", [*SPECS, LongShort(4, 3), Full()], ids=lambda spec: type(spec).__name__)
@pytest.mark.parametrize("count", [-1, 0, 10])
def test_a_count_of_no_tokens_or_of_more_than_there_are_is_refused(spec, count):
    with pytest.raises(ValueError, match=f"count must be 1 to 9, the number of tokens, got {count}"):
        built(spec)(torch.randn(1, 9, 16), None, count)


@each_spec
def test_a_longer_one_is_refused(spec):
    with pytest.raises(ValueError, match=str(LENGTH)):
        built(spec)(torch.randn(1, LENGTH + 1, 16))


@each_spec
def test_heads_that_do_not_divide_the_width_are_refused(spec):
    with pytest.raises(ValueError, match="width 16 is not divisible by heads 3"):
        spec.build(16, 3, LENGTH)


@each_spec
@pytest.mark.parametrize("global_tokens", [0, 2])
def test_gradients_reach_every_parameter(spec, global_tokens):
    layer = built(spec, global_tokens=global_tokens)
    layer(torch.randn(2, LENGTH, 16)).square().sum().backward()
    learned = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned.values())
    frozen = {name.split(".")[1] for name, p in layer.named_parameters() if not p.requires_grad}
    of_global_tokens = {"query_global", "key_global", "value_global"}
    assert frozen == (of_global_tokens if type(spec) is Longformer and global_tokens == 0 else set())


@each_spec
@pytest.mark.parametrize("global_tokens", [0, 2])
def test_what_stands_in_padding_reaches_no_real_token(spec, global_tokens):
    """Not even NaN in it, in the output or in any gradient; not even where all is padding."""
    assert spec.masks_padding
    layer = built(spec, global_tokens=global_tokens)
    x = torch.randn(2, LENGTH, 16)
    mask = torch.arange(LENGTH) < torch.tensor([[41], [0]])
    results = []
    for padding in (0.0, 1e3, float("nan")):
        filled = x.masked_fill(~mask[..., None], padding).requires_grad_()
        layer.zero_grad()
        y = seeded(layer, filled, mask)
        y[mask].sum().backward()
        results.append([y, filled.grad, *(p.grad for p in layer.parameters() if p.requires_grad)])
    for a, *others in zip(*results, strict=True):
        assert a.isfinite().all()
        assert all(torch.equal(a, b) for b in others)


@each_spec
@pytest.mark.parametrize("global_tokens", [0, 2])
def test_how_much_padding_there_is_matters_where_the_spec_says_so(spec, global_tokens):
    layer = built(spec, global_tokens=global_tokens)
    x = torch.randn(1, LENGTH, 16)
    mask = torch.arange(LENGTH)[None] < 32
    difference = (seeded(layer, x, mask)[:, :32] - seeded(layer, x[:, :32])).abs().max()
    assert (difference > 1e-3) == spec.counts_padding
    assert spec.counts_padding or difference < 1e-6


@each_spec
def test_a_mask_that_hides_nothing_changes_nothing(spec):
    layer = built(spec)
    x = torch.randn(2, 33, 16)
    everything = torch.ones(2, 33, dtype=torch.bool)
    torch.testing.assert_close(seeded(layer, x, everything), seeded(layer, x), rtol=0, atol=1e-6)


@each_spec
def test_runs_in_bfloat16_under_autocast(spec):
    layer = built(spec, global_tokens=2)
    x = torch.randn(2, LENGTH, 16)
    mask = torch.arange(LENGTH) < torch.tensor([[41], [LENGTH]])
    expected = seeded(layer, x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        y = seeded(layer, x, mask)
        y[mask].float().square().sum().backward()
    assert y.dtype == torch.bfloat16
    assert y[mask].isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.requires_grad)
    if type(spec) not in (Reformer, Sinkhorn):  # other hashes, another sorting: other tokens are seen
        assert (y - expected)[mask].abs().max() < 0.03 * expected[mask].abs().max()


@each_spec
def test_dropout_acts_in_training_only(spec):
    layer = built(spec, dropout=0.5)
    x = torch.randn(1, LENGTH, 16)
    layer.eval()
    kept = seeded(layer, x)
    assert torch.equal(seeded(layer, x), kept)
    assert torch.equal(seeded(layer.train(), x), kept) == (type(spec) is BigBird)


@each_spec
def test_a_missing_package_is_named_with_its_cure(spec, monkeypatch):
    package = PACKAGES.get(type(spec))
    if package is None:
        assert type(spec) is LinformerWindow
        return
    for loaded in list(sys.modules):
        if loaded.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{package}.*pip install 'longshort\[baselines\]'"):
        built(spec)


def full_attention(x, query, key, value, out):
    q, k, v = (rearrange(linear(x), "b n (h d) -> b h n d", h=2) for linear in (query, key, value))
    return out(rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)"))


def assert_full(layer, x, query, key, value, out, tolerance=1e-5):
    expected = full_attention(x, query, key, value, out)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=tolerance)


def test_linformer_with_a_row_a_token_is_full_attention():
    layer = built(Linformer(rank=LENGTH))
    package = layer.attention
    for projection in (package.proj_k, package.proj_v):
        nn.init.eye_(projection)
    assert_full(layer, torch.randn(1, LENGTH, 16), package.to_q, package.to_k, package.to_v, package.to_out)


def test_performer_comes_nearer_to_full_attention_with_more_features():
    """Near, not there: the package's directions are not spread evenly, and a bias stays."""
    x = torch.randn(1, LENGTH, 16)
    errors = []
    for features in (16, 4096):
        layer = built(Performer(features=features))
        expected = full_attention(x, layer.query, layer.key, layer.value, layer.out)
        errors.append((layer(x) - expected).norm())
    assert errors[1] < errors[0] / 3


def test_linear_transformer_weighs_by_its_features():
    layer = built(LinearTransformer())
    x = torch.randn(1, LENGTH, 16)
    q, k, v = (rearrange(f(x), "b n (h d) -> b h n d", h=2) for f in (layer.query, layer.key, layer.value))
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    y = weights / weights.sum(dim=3, keepdim=True) @ v
    torch.testing.assert_close(layer(x), layer.out(rearrange(y, "b h n d -> b n (h d)")), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [50, LENGTH])
def test_nystromformer_with_a_landmark_a_token_is_full_attention(tokens):
    layer = built(Nystromformer(landmarks=LENGTH, iterations=20, convolution=0))
    weights = layer.attention.to_qkv.weight.chunk(3)
    three = (lambda x, w=w: x @ w.T for w in weights)
    assert_full(layer, torch.randn(1, tokens, 16), *three, layer.attention.to_out, tolerance=1e-4)


def test_longformer_with_a_window_over_all_is_full_attention():
    layer = built(Longformer(window=2 * LENGTH))
    package = layer.attention
    assert_full(layer, torch.randn(1, LENGTH, 16), package.query, package.key, package.value, layer.out)


def test_longformer_shows_its_global_tokens_all_and_all_of_them():
    layer = built(Longformer(window=4), global_tokens=1)
    x = torch.randn(1, LENGTH, 16, requires_grad=True)
    y = layer(x)
    seen_by_first, seen_by_last = (torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)[0][0] for i in (0, -1))
    assert (seen_by_first.abs().sum(dim=1) > 0).all()
    assert (seen_by_last.abs().sum(dim=1) > 0).nonzero().flatten().tolist() == [0, 67, 68, 69]


def test_bigbird_in_one_block_is_full_attention():
    layer = built(BigBird(block=LENGTH, random_blocks=1))
    package = layer.attention
    assert_full(layer, torch.randn(1, LENGTH, 16), package.query, package.key, package.value, layer.out)


@pytest.mark.parametrize("tokens", [1000, 1024, 2048, 3072, 4096])
def test_bigbird_at_the_lengths_its_package_treats_apart(tokens):
    """Its random blocks are the same in training and evaluation, and drawing them leaves numpy's state as it was."""
    torch.manual_seed(0)
    layer = BigBird().build(4, 1, tokens)
    x = torch.randn(1, tokens, 4)
    before = np.random.get_state()[1].copy()
    training = layer(x)
    assert torch.equal(layer.eval()(x), training)
    assert (np.random.get_state()[1] == before).all()
    other = replace(BigBird(), seed=1).build(4, 1, tokens)
    other.load_state_dict(layer.state_dict())
    assert not torch.equal(other(x), training)


@pytest.mark.parametrize("global_tokens", [0, 2])
@pytest.mark.parametrize("dual_norm", [True, False])
def test_linformer_with_a_window_differs_from_ours_in_the_projection_alone(global_tokens, dual_norm):
    """Where both projections are the plain mean over tokens, the layers are one."""
    ours = built(LongShort(window=4, rank=3, dual_norm=dual_norm), global_tokens=global_tokens)
    layer = built(LinformerWindow(window=4, rank=3, dual_norm=dual_norm), global_tokens=global_tokens)
    for p in (ours.rows.weight, ours.rows.bias):
        nn.init.zeros_(p)
    nn.init.constant_(layer.rows.weight, 1 / (41 - global_tokens))
    shared = {name: t for name, t in ours.state_dict().items() if not name.startswith("rows")}
    assert layer.load_state_dict(shared, strict=False).missing_keys == ["rows.weight"]
    x = torch.randn(2, LENGTH, 16)
    mask = torch.arange(LENGTH).expand(2, -1) < 41
    torch.testing.assert_close(layer(x, mask), ours(x, mask), rtol=0, atol=1e-5)


def test_linformer_with_a_window_has_a_projection_of_keys_and_one_of_values():
    layer = built(LinformerWindow(window=0, rank=LENGTH, dual_norm=False))
    nn.init.eye_(layer.rows.weight[:LENGTH])
    nn.init.eye_(layer.rows.weight[LENGTH:])
    x = torch.randn(1, LENGTH, 16)
    assert_full(layer, x, layer.query, layer.key, layer.value, layer.out)
    before = layer(x)
    nn.init.zeros_(layer.rows.weight[LENGTH:])
    assert not torch.allclose(layer(x), before)
    torch.testing.assert_close(layer(x), layer.out.bias.expand(1, LENGTH, -1))


def test_linformer_with_a_window_refuses_sizes_that_mean_nothing():
    with pytest.raises(ValueError, match="rank must be at least 1"):
        built(LinformerWindow(window=4, rank=0))
    with pytest.raises(ValueError, match="max_length 70 leaves no token beside 70 global ones"):
        built(LinformerWindow(window=4, rank=2), global_tokens=LENGTH)


def test_an_even_convolution_and_an_odd_window_are_refused():
    with pytest.raises(ValueError, match="convolution must be odd"):
        built(Nystromformer(convolution=4))
    with pytest.raises(ValueError, match="window must be even"):
        built(Longformer(window=7))
