"""The sequence models on a GPU: compiled and as a CUDA graph, a step has the gradients of float64."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F

from longshort.models.sequence import PairConfig, SequenceConfig
from longshort.nn.spec import Full, LongShort
from longshort.ops.packed import packable, packed_attention
from longshort.train.graph import Gradients

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


def batch(count=1, n=500):
    """Sequences of many lengths; the first is whole. One label for all: of two, gradients would nearly cancel, and what
    is left of them in 16 bits is rounding."""
    made = torch.Generator().manual_seed(0)
    tokens = [torch.randint(1, 20, (8, n), generator=made, dtype=torch.int16) for _ in range(count)]
    ends = torch.randint(1, n, (8, 1), generator=made)
    ends[0] = n
    return tuple(t.masked_fill(torch.arange(n) >= ends, 0) for t in tokens), torch.zeros(8, dtype=torch.long)


@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize(
    ("half", "loss_off", "off", "noise"),
    [(False, 1e-5, 1e-3, 1e-6), (True, 5e-3, 0.3, 1e-5)],  # on a CPU at most 2e-7, 9e-5, 1e-9; 2e-3, 0.19, 4e-6
    ids=["float32", "bfloat16"],
)
def test_a_compiled_graph_gives_the_exact_gradients(attention, pair, half, loss_off, off, noise):
    """Each weight's, up to a share of its own, and of all together: some are 0 but for rounding, such as that of a bias
    that softmax takes out again."""
    torch.manual_seed(0)
    model = (PairConfig if pair else SequenceConfig)(attention, classes=2, length=512).build()
    tokens, labels = batch(2 if pair else 1)
    exact = deepcopy(model).double()
    expected = F.cross_entropy(exact(*tokens), labels)
    expected.backward()

    model.cuda()

    def step(given, carry):
        tokens, labels = given
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(*tokens).float(), labels)
        loss.backward()
        return loss.detach(), None

    torch.compiler.reset()
    model.compile(dynamic=False)
    compute = Gradients(step, model)
    given = tuple(t.cuda() for t in tokens), labels.cuda()
    for _ in range(5):  # plainly, captured, replayed
        model.zero_grad(set_to_none=True)
        loss, _ = compute(given, None)
    assert loss.item() == pytest.approx(expected.item(), rel=loss_off)
    wanted = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    whole = torch.cat([g.flatten() for g in wanted.values()]).norm()
    wrong = {
        name: (p.grad.double().cpu() - wanted[name]).norm().item()
        for name, p in model.named_parameters()
        if name in wanted
    }
    assert {n for n, e in wrong.items() if e > off * wanted[n].norm() + noise * whole} == set()


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
