"""Laws of the embedding with several tables of gradients: it is nn.Embedding."""

import pytest
import torch

from longshort.nn.embedding import Embedding, Lookup


@pytest.mark.parametrize("shape", [(0,), (1,), (130,), (3, 50), (2, 3, 4)])
@pytest.mark.parametrize("tables", [1, 2, 64])
def test_a_lookup_has_the_gradient_of_an_embedding(shape, tables):
    made = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 5, generator=made, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 7, shape, generator=made)
    y, expected = Lookup.apply(weight, tokens, tables), torch.nn.functional.embedding(tokens, weight)
    torch.testing.assert_close(y, expected)
    g = torch.randn(y.shape, generator=made, dtype=torch.float64)
    (found,), (wanted,) = (torch.autograd.grad(t, weight, g) for t in (y, expected))
    torch.testing.assert_close(found, wanted)


def test_its_gradient_has_a_gradient():
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 1, 1, 3])
    assert torch.autograd.gradgradcheck(lambda w: Lookup.apply(w, tokens, 8).square(), (weight,))


def test_gradients_of_each_sample():
    weight, tokens = torch.randn(7, 5), torch.randint(0, 7, (3, 9))

    def loss(weight, tokens):
        return Lookup.apply(weight, tokens, 4).square().sum()

    found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, tokens)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(weight, t) for t in tokens]))


def test_state_and_errors_are_those_of_an_embedding():
    ours, theirs = Embedding(7, 5), torch.nn.Embedding(7, 5)
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.arange(7)[None]
    torch.testing.assert_close(ours(tokens), theirs(tokens))
    with pytest.raises(IndexError):
        ours(tokens + 1)


def test_sums_are_exact_in_16_bits():
    weight = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    Lookup.apply(weight, torch.zeros(1_000, dtype=torch.long), 2).sum().backward()
    torch.testing.assert_close(weight.grad[0], torch.full((3,), 1_000.0, dtype=torch.bfloat16))


def test_tables_are_for_small_vocabularies_that_are_only_looked_up():
    assert [Embedding(rows, 3).tables for rows in (19, 512, 10_000, 30_000, 50_000)] == [64, 64, 3, 1, 1]
    for more in (dict(padding_idx=0), dict(max_norm=1.0), dict(sparse=True), dict(scale_grad_by_freq=True)):
        assert Embedding(19, 3, **more).tables == 1
