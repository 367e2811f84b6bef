"""The sequence models on a GPU: compiled and as a CUDA graph, a step has the gradients of float64."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from longshort.graphs import Replay
from longshort.lab.train.graph import Gradients
from longshort.models.sequence import MaskedConfig, PairConfig, SequenceConfig
from longshort.nn.spec import Full, LongShort
from longshort.ops.packed import packable, packed_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch.compile has warnings of its own
]
ATTENTIONS = {
    "8,32": LongShort(8, 32),
    "1,1": LongShort(1, 1),
    "0,4": LongShort(0, 4),
    "8,0": LongShort(8, 0),
    "rotary": LongShort(8, 32, rotary=True),
    "full": Full(),
    "full rotary": Full(rotary=True),
}


CONFIGS = {"one": SequenceConfig, "pair": PairConfig, "masked": MaskedConfig}
EACH = {False: (1e-3, 1e-6), True: (0.1, 1e-4)}  # by half: how far off a weight's gradient is, of its own and of all


def batch(count, n=501):
    """Sequences of many lengths; the first is whole. An odd one: compilers may pad the strides of such."""
    made = torch.Generator().manual_seed(0)
    tokens = [torch.randint(1, 20, (8, n), generator=made, dtype=torch.int16) for _ in range(count)]
    ends = torch.randint(1, n, (8, 1), generator=made)
    ends[0] = n
    return tuple(t.masked_fill(torch.arange(n) >= ends, 0) for t in tokens)


def loss_of(model, tokens):
    """Of all tokens, each to be said again, or of one label for all sequences: of two, gradients nearly cancel."""
    scores = model(*tokens)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if scores.dim() == 3:
        return F.cross_entropy(scores.flatten(0, 1), tokens[0].flatten().long(), ignore_index=0)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_a_compiled_graph_gives_the_exact_gradients(attention, kind, half):
    """Each weight's, up to a share of its own, and of all together: some are 0 but for rounding, such as that of a bias
    that softmax takes out again. In 16 bits, a label's gradients are compared as one vector: in some weights what 8
    sequences say nearly cancels, and rounding is as large as what is left."""
    torch.manual_seed(0)
    model = CONFIGS[kind](attention, classes=2, length=512).build()
    tokens = batch(2 if kind == "pair" else 1)
    exact = deepcopy(model).double()
    expected = loss_of(exact, tokens)
    expected.backward()

    model.cuda()

    def step(given, carry):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = loss_of(model, given)
        loss.backward()
        return loss.detach(), None

    torch.compiler.reset()
    model.compile(dynamic=False)
    compute = Gradients(step, model)
    given = tuple(t.cuda() for t in tokens)
    for _ in range(5):  # plainly, captured, replayed
        model.zero_grad(set_to_none=True)
        loss, _ = compute(given, None)
    assert loss.item() == pytest.approx(expected.item(), rel=5e-3 if half else 1e-5)
    wanted = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    wrong = {n: p.grad.double().cpu() - wanted[n] for n, p in model.named_parameters() if n in wanted}
    whole = torch.cat([g.flatten() for g in wanted.values()]).norm()
    assert torch.cat([g.flatten() for g in wrong.values()]).norm() < EACH[half][0] * whole
    if kind == "masked" or not half:
        own, of_all = EACH[half]
        far = {n: (w.norm() / wanted[n].norm()).item() for n, w in wrong.items()}
        assert {n: far[n] for n, w in wrong.items() if w.norm() > own * wanted[n].norm() + of_all * whole} == {}


def padded(dtype=torch.bfloat16):
    """q, k, v and a mask: sequences that end early, one with holes, one that is empty."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, 2, 300, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.arange(300, device="cuda") < torch.tensor([300, 17, 130, 211, 0], device="cuda")[:, None]
    mask[3] &= torch.rand(300, device="cuda") < 0.5
    return (q, k, v), mask


def test_full_attention_over_packed_sequences_is_full_attention():
    three, mask = padded()
    assert packable(three[0])
    y = packed_attention(*three, mask)
    assert y.isfinite().all()
    real = mask[:, None, :, None]
    assert not y.masked_select(~real).any()
    exact = [t.detach().double().requires_grad_() for t in three]
    expected = F.scaled_dot_product_attention(*exact, attn_mask=mask[:, None, None, :])[:4]
    g = torch.randn_like(expected)
    found = torch.autograd.grad((y[:4] * g * real[:4]).sum(), three)
    wanted = torch.autograd.grad((expected * g * real[:4]).sum(), exact)
    for a, b in zip((y[:4] * real[:4], *found), (expected * real[:4], *wanted), strict=True):
        assert (a - b).norm() <= 1e-2 * b.norm()


def test_dropout_of_packed_sequences_keeps_the_mean():
    (q, k, v), mask = padded()
    y = packed_attention(q, k, torch.ones_like(v), mask, dropout=0.5).float()[mask[:, None].expand(-1, 2, -1)]
    assert y.mean().item() == pytest.approx(1.0, abs=0.02) and y.std() > 0.02


@pytest.mark.parametrize("how", ["plain", "compiled", "graph"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("n", [4000, 4001])
def test_packed_attention_of_a_batch_as_large_as_in_training(n, dropout, how):
    """Without dropout it is full attention. With it, the backward pass leaves out what the forward pass did: with y
    as its gradient, what v gets is then worth as much with v as y with y; with others left out, half of that."""
    torch.manual_seed(0)
    torch.compiler.reset()
    three = [torch.randn(32, 2, n, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    mask = torch.arange(n, device="cuda") < torch.randint(1, n + 1, (32, 1), device="cuda")
    attend = packed_attention if how == "plain" else torch.compile(packed_attention, dynamic=False)

    def step(given, carry):
        leaves = [t.detach().requires_grad_() for t in given[:3]]
        y = attend(*leaves, given[3], dropout)
        return (y.detach(), *torch.autograd.grad(y, leaves, y.detach())), carry

    run = Replay(step) if how == "graph" else step
    for _ in range(4):  # plainly, captured, replayed
        (y, dq, dk, dv), _ = run((*three, mask), None)
    assert (three[2].double() * dv).sum().item() == pytest.approx((y.double() ** 2).sum().item(), rel=0.02)
    if dropout == 0.0:
        exact = [t.float().requires_grad_() for t in three]
        expected = F.scaled_dot_product_attention(*exact, attn_mask=mask[:, None, None, :]) * mask[:, None, :, None]
        wanted = torch.autograd.grad(expected, exact, expected.detach())
        for a, b in zip((y, dq, dk, dv), (expected, *wanted), strict=True):
            assert (a - b).norm() <= 2e-2 * b.norm()
