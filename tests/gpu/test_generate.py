"""On a CUDA machine, what is replayed is what is computed. Skipped elsewhere."""

from dataclasses import replace

import pytest
import torch

from longshort import generate as sampling
from longshort.generate import Sampling, generate
from longshort.graphs import Replay
from longshort.models import CharLM, CharLMConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = CharLMConfig(layers=2, width=64, heads=2, feedforward=64, window=32, segment=8, memory=64)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("read", [3, 100])
def test_replayed_writing_is_the_writing(positions, dtype, read, monkeypatch):
    torch.manual_seed(0)
    model = CharLM(replace(CONFIG, positions=positions)).to("cuda", dtype)
    prompt = bytes(range(read))
    made = []
    monkeypatch.setattr(sampling, "Replay", lambda step: made.append(Replay(step)) or made[-1])
    ours = bytes(generate(model, prompt, 80, Sampling(temperature=1.0), seed=3))
    assert len(made[0].graphs) == 8  # one for each length of the unfinished segment
    monkeypatch.setattr(sampling, "Replay", lambda step: step)
    monkeypatch.setattr(CharLM, "filled", lambda model, caches: caches)
    assert ours == bytes(generate(model, prompt, 80, Sampling(temperature=1.0), seed=3))


def test_each_kind_of_call_has_its_graph_and_carries_on():
    def step(x, carry):
        total = x.sum() if carry is None else x.sum() + carry[0]
        return x * 2, (total,)

    replay, carry, expected = Replay(step), None, 0.0
    for i in range(12):
        x = torch.full((1 + i % 2,), float(i), device="cuda")
        result, carry = replay(x, carry)
        expected += x.sum().item()
        assert result.tolist() == (x * 2).tolist() and carry[0].item() == expected
    assert len(replay.graphs) == 2
