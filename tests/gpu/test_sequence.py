"""The sequence models on a GPU: compiled and as a CUDA graph, a step gives what it gives without."""

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
    """Sequences of many lengths; the first is whole."""
    made = torch.Generator().manual_seed(0)
    tokens = [torch.randint(1, 20, (8, n), generator=made, dtype=torch.int16) for _ in range(count)]
    ends = torch.randint(1, n, (8, 1), generator=made)
    ends[0] = n
    return tuple(t.masked_fill(torch.arange(n) >= ends, 0).cuda() for t in tokens), torch.arange(8).cuda() % 2


def gradients(model, step, given, times=1):
    for _ in range(times):
        model.zero_grad(set_to_none=True)
        loss, _ = step(given, None)
    return loss.item(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("pair", [False, True], ids=["one", "pair"])
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_a_compiled_graph_gives_the_same_step(attention, pair):
    torch.manual_seed(0)
    config = (PairConfig if pair else SequenceConfig)(attention, classes=2, length=512)
    model = config.build().cuda()
    given = batch(2 if pair else 1)

    def step(given, carry):
        tokens, labels = given
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(*tokens).float(), labels)
        loss.backward()
        return loss.detach(), None

    plain_loss, plain = gradients(model, step, given)
    torch.compiler.reset()
    model.compile(dynamic=False)
    loss, found = gradients(model, Gradients(step, model), given, times=5)
    assert loss == pytest.approx(plain_loss, rel=2e-3)
    for a, b in zip(found, plain, strict=True):
        if b is not None and b.numel():
            assert (a - b).norm() <= 0.05 * b.norm() + 1e-6


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
