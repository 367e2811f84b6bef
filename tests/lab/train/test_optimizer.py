"""Muon orthogonalises matrices, AdamW is torch's, only weights decay, and a resumed run is the run itself."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from longshort.lab.runs.optimizers import AdamW, Muon
from longshort.lab.train.muon import COEFFICIENTS, MuonAdamW, orthogonalise, orthogonalise_each
from longshort.lab.train.optimizer import build_optimizer, set_rate

SPECS = [AdamW(lr=0.01), Muon(lr=0.01, weight_decay=0.1, rest=AdamW(lr=0.02))]


class Net(nn.Module):
    """A tied embedding, wide, tall and square matrices, a convolution, a norm, and a bias with an axis for heads."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.wide, self.tall, self.square = nn.Linear(12, 6, bias=False), nn.Linear(6, 12), nn.Linear(6, 6)
        self.convolution = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.content_bias = nn.Parameter(torch.zeros(2, 3))
        self.output = nn.Linear(6, 11, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):  # [B, N]
        x = self.norm(self.embedding(tokens)) + self.content_bias.flatten()
        x = x + self.wide(torch.relu(self.tall(x))) + self.square(x)
        return self.output(x + self.convolution(x.mT).mT)


def net():
    torch.manual_seed(0)
    return Net()


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        tokens = torch.randint(11, (4, 9), generator=torch.Generator(torch.get_default_device()).manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        set_rate(optimizer, 1 / (step + 1))
        optimizer.step()


def names(model, params):
    known = {id(p): name for name, p in model.named_parameters()}
    return [known[id(p)] for p in params]


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def with_spectrum(rows, cols, low=0.1):
    """[1, rows, cols] whose singular values lie between low and 1."""
    left, right = (torch.linalg.qr(torch.randn(n, min(rows, cols)))[0] for n in (rows, cols))
    return (left * torch.linspace(low, 1, min(rows, cols)) @ right.mT)[None]


@pytest.mark.parametrize("size", [(1, 7), (4, 4), (33, 33), (64, 64), (8, 32), (32, 8), (50, 47), (96, 48)])
@pytest.mark.parametrize("unit", (1e-9, 1.0, 1e6))
def test_singular_values_come_close_to_one(size, unit):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(unit * with_spectrum(*size), 5))
    assert values.min() > 0.68 and values.max() < 1.21


@pytest.mark.parametrize("size", [(24, 24), (16, 40), (40, 16)])
@pytest.mark.parametrize("iterations", (1, 3, 5))
def test_the_polynomial_acts_on_singular_values_alone(size, iterations):
    torch.manual_seed(1)
    matrix = torch.randn(1, *size)
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    x, (a, b, c) = values / values.norm(), COEFFICIENTS
    for _ in range(iterations):
        x = a * x + b * x**3 + c * x**5
    expected = (left * x[:, None]) @ right
    torch.testing.assert_close(orthogonalise(matrix, iterations), expected.float(), atol=2e-4, rtol=0)


def test_zeros_stay_zeros():
    assert not orthogonalise(torch.zeros(2, 3, 5), 5).any()


def test_matrices_together_are_as_one_by_one():
    torch.manual_seed(2)
    sizes = [(6, 9), (9, 6), (5, 5), (6, 9), (2, 11), (5, 5), (9, 6), (11, 2), (7, 3)]
    matrices = [torch.randn(*size) for size in sizes]
    together = orthogonalise_each(matrices, 5)
    for matrix, result in zip(matrices, together, strict=True):
        assert result.shape == matrix.shape and result.is_contiguous()
        torch.testing.assert_close(result, orthogonalise(matrix[None], 5)[0], atol=1e-5, rtol=1e-5)


def test_momentum_and_update():
    torch.manual_seed(3)
    rate, momentum, decay, scale = 0.1, 0.8, 0.5, 0.3
    weight = nn.Parameter(torch.randn(4, 7))
    optimizer = MuonAdamW([weight], lr=rate, momentum=momentum, weight_decay=decay, scale=scale)
    expected, mean = weight.detach().clone(), torch.zeros(4, 7)
    for _ in range(3):
        weight.grad = torch.randn(4, 7)
        mean = momentum * mean + (1 - momentum) * weight.grad
        update = orthogonalise((momentum * mean + (1 - momentum) * weight.grad)[None], 5)[0]
        expected = (1 - rate * decay) * expected - rate * scale * 7**0.5 * update
        optimizer.step()
        torch.testing.assert_close(optimizer.state[weight]["momentum"], mean)
        torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (16, 64), (64, 16)])
def test_scale_is_the_root_mean_square_of_an_update(size):
    torch.manual_seed(4)
    weight = nn.Parameter(torch.zeros(size))
    weight.grad = with_spectrum(*size)[0]
    MuonAdamW([weight], lr=1.0, scale=0.2).step()
    assert weight.detach().square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


def test_only_weights_decay_and_what_is_tied_comes_once():
    model = net()
    decayed, rest = build_optimizer(AdamW(weight_decay=0.3), model).param_groups
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert names(model, decayed["params"]) == ["wide.weight", "tall.weight", "square.weight", "convolution.weight"]
    biases = ["tall.bias", "square.bias", "convolution.bias", "norm.weight", "norm.bias"]
    assert names(model, rest["params"]) == ["content_bias", "embedding.weight", *biases]


def test_muon_takes_hidden_matrices():
    model = net()
    spec = Muon(lr=0.01, weight_decay=0.2, rest=AdamW(lr=0.003, weight_decay=0.4), outputs=("square", "output"))
    hidden, decayed, rest = build_optimizer(spec, model).param_groups
    assert names(model, hidden["params"]) == ["wide.weight", "tall.weight"]
    assert names(model, decayed["params"]) == ["square.weight", "convolution.weight"]
    assert "embedding.weight" in names(model, rest["params"]) and "content_bias" in names(model, rest["params"])
    assert [g["muon"] for g in (hidden, decayed, rest)] == [True, False, False]
    assert [g["lr"] for g in (hidden, decayed, rest)] == [0.01, 0.003, 0.003]
    assert [g["weight_decay"] for g in (hidden, decayed, rest)] == [0.2, 0.4, 0.0]
    assert hidden.keys() == decayed.keys() == rest.keys()


@pytest.mark.parametrize("spec", SPECS)
def test_a_group_without_parameters_is_left_out(spec):
    model = nn.Linear(3, 4, bias=False)
    assert len(build_optimizer(spec, model).param_groups) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_frozen_parameters_are_left_alone(spec):
    model = net()
    model.tall.requires_grad_(False)
    optimizer = build_optimizer(spec, model)
    assert not {"tall.weight", "tall.bias"} & {n for g in optimizer.param_groups for n in names(model, g["params"])}


def test_the_adamw_part_is_torchs():
    ours, theirs = net(), net()
    groups = build_optimizer(AdamW(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1), ours).param_groups
    ours_optimizer = MuonAdamW([dict(group, muon=False) for group in groups])
    theirs_optimizer = build_optimizer(AdamW(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1), theirs)
    assert type(theirs_optimizer) is torch.optim.AdamW
    train(ours, ours_optimizer, 6)
    train(theirs, theirs_optimizer, 6)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_a_resumed_run_is_the_run_itself(spec):
    whole, half = net(), net()
    train(whole, build_optimizer(spec, whole), 6)
    optimizer = build_optimizer(spec, half)
    train(half, optimizer, 3)
    file = io.BytesIO()
    torch.save([half.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file)
    resumed = Net()
    resumed.load_state_dict(weights)
    optimizer = build_optimizer(spec, resumed)
    optimizer.load_state_dict(state)
    train(resumed, optimizer, 3, first=3)
    assert equal(resumed, whole) and not equal(half, whole)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("flat", (False, True))
def test_a_run_resumed_by_names_is_the_run_itself(spec, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    whole, half = net(), net()
    train(whole, build_optimizer(spec, whole), 6)
    optimizer = build_optimizer(spec, half)
    train(half, optimizer, 3)
    state = copy.deepcopy(get_optimizer_state_dict(half, optimizer, options=options))
    resumed = copy.deepcopy(half)
    optimizer = build_optimizer(spec, resumed)
    set_optimizer_state_dict(resumed, optimizer, state, options=options)
    assert equal(resumed, half)
    train(resumed, optimizer, 3, first=3)
    assert equal(resumed, whole)


def test_names_in_a_checkpoint():
    model = net()
    optimizer = build_optimizer(Muon(), model)
    train(model, optimizer, 1)
    state = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    assert {"state.wide.weight.momentum", "state.norm.bias.mean", "state.norm.bias.square"} <= state.keys()
    assert state["param_groups.wide.weight.muon"] and not state["param_groups.norm.bias.muon"]
    assert state["state.norm.bias.updates"] == 1


@pytest.mark.parametrize("spec", SPECS)
def test_set_rate_moves_each_group_from_its_own_peak(spec):
    optimizer = build_optimizer(spec, net())
    peaks = [group["lr"] for group in optimizer.param_groups]
    for factor in (0.5, 0.0, 0.25):
        set_rate(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [factor * peak for peak in peaks]


def test_gradients_are_only_read_and_may_be_views():
    torch.manual_seed(5)
    model, twin = (nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 5)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        larger = torch.randn(*(2 * n for n in p.shape))
        p.grad = larger[tuple(slice(None, None, 2) for _ in p.shape)]
        q.grad = p.grad.clone(memory_format=torch.contiguous_format)
    for each in (model, twin):
        build_optimizer(Muon(lr=0.1), each).step()
    assert equal(model, twin)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_a_parameter_without_a_gradient_stays(spec):
    model = net()
    optimizer = build_optimizer(spec, model)
    optimizer.step()
    assert equal(model, net()) and not optimizer.state
    for p in model.square.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    changed = [
        n for (n, p), q in zip(model.named_parameters(), net().parameters(), strict=True) if not torch.equal(p, q)
    ]
    assert changed == ["square.weight", "square.bias"]


def test_a_closure_is_called_with_gradients():
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(Muon(), model)

    def closure():
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert len(optimizer.state) == 2


@pytest.mark.parametrize("spec", [Muon(lr=0.05), Muon(lr=0.05, rest=AdamW(lr=0.05), outputs=("1",))])
def test_least_squares(spec):
    torch.manual_seed(6)
    x, target = torch.randn(64, 8), torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    optimizer = build_optimizer(spec, model)
    losses = []
    for step in range(120):
        optimizer.zero_grad()
        loss = (model(x) - x @ target).square().mean()
        loss.backward()
        set_rate(optimizer, 1 - step / 120)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


def test_refuses_sparse_gradients():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = build_optimizer(Muon(), embedding)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        optimizer.step()


@pytest.fixture
def mesh():
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_refuses_what_fsdp_shards(mesh):
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4, device="cpu")
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match="Muon needs whole matrices, but FSDP shards them; use AdamW or DDP"):
        build_optimizer(Muon(), model)
    build_optimizer(AdamW(), model)


@pytest.mark.parametrize("shape, dtype, words", [((3,), torch.float32, "(3,)"), ((3, 3), torch.bfloat16, "bfloat16")])
def test_muon_refuses(shape, dtype, words):
    with pytest.raises(ValueError) as e:
        MuonAdamW([nn.Parameter(torch.zeros(shape, dtype=dtype))])
    assert words in str(e.value)


@pytest.mark.parametrize(
    "spec, keywords, words",
    [
        (AdamW, dict(lr=-1.0), ["lr", "-1.0"]),
        (AdamW, dict(eps=float("nan")), ["eps", "nan"]),
        (AdamW, dict(weight_decay=-0.1), ["weight_decay", "-0.1"]),
        (AdamW, dict(betas=(0.9, 1.0)), ["betas[1]", "1.0"]),
        (Muon, dict(lr=-1.0), ["lr", "-1.0"]),
        (Muon, dict(momentum=1.0), ["momentum", "1.0"]),
        (Muon, dict(iterations=0), ["iterations", "0"]),
        (Muon, dict(outputs="head"), ["outputs", "'head'"]),
    ],
)
def test_specs_refuse(spec, keywords, words):
    with pytest.raises(ValueError) as e:
        spec(**keywords)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_models_that_are_refused():
    with pytest.raises(ValueError, match=r"'head'.*Net"):
        build_optimizer(Muon(outputs=("head",)), net())
    with pytest.raises(ValueError, match="no parameter"):
        build_optimizer(AdamW(), nn.ReLU())
