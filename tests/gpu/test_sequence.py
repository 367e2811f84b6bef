"""The sequence models on a GPU: compiled and as a CUDA graph, a step gives what it gives without."""

import pytest
import torch
import torch.nn.functional as F

from longshort.models.sequence import PairConfig, SequenceConfig
from longshort.nn.spec import Full, LongShort
from longshort.train.graph import Gradients

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ATTENTIONS = {
    "8,32": LongShort(8, 32),
    "1,1": LongShort(1, 1),
    "0,4": LongShort(0, 4),
    "8,0": LongShort(8, 0),
    "rotary": LongShort(8, 32, rotary=True),
    "full": Full(),
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
