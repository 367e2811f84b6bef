"""Long-short encoders on a GPU, by the kernels: what the processor finds, in 32 and in 16 bits, compiled too."""

from copy import deepcopy

import pytest
import torch
import transformers as hf

from longshort.hf.roberta import LongShortBertConfig, LongShortRobertaConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch.compile has warnings of its own
]
TOKENS = 517
CONFIGS = {"roberta": LongShortRobertaConfig, "bert": LongShortBertConfig}
OFF = {torch.float32: 1e-4, torch.bfloat16: 0.05}  # of all gradients together


def made(kind):
    torch.manual_seed(0)
    config = CONFIGS[kind](
        vocab_size=200,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=600,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        window=32,
        rank=16,
        norm_eps=10.0,
    )
    return hf.AutoModelForSequenceClassification.from_config(config).train()


def batch(side):
    tokens = torch.randint(5, 200, (4, TOKENS), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(TOKENS) < torch.tensor([[TOKENS], [300], [64], [1]])).long()
    return tokens, mask if side == "right" else mask.flip(1)


def gradients(model, tokens, mask, autocast=False):
    device = next(model.parameters()).device
    tokens, mask, labels = (t.to(device) for t in (tokens, mask, torch.tensor([0, 1, 0, 1])))
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        loss = model(tokens, mask, labels=labels).loss
    model.zero_grad()
    loss.backward()
    found = [p.grad.double().flatten().cpu() for p in model.parameters() if p.grad is not None]
    return torch.cat(found)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", OFF, ids=str)
def test_gradients_are_those_of_float64(kind, side, compiled, dtype):
    model, given = made(kind), batch(side)
    exact = gradients(deepcopy(model).double(), *given)
    model = model.cuda()
    if compiled:
        torch.compiler.reset()
        model.compile(dynamic=False)
    found = gradients(model, *given, autocast=dtype is torch.bfloat16)
    assert (found - exact).norm() / exact.norm() < OFF[dtype]


def test_four_thousand_tokens_fit():
    """RoBERTa-base's sizes, forward and backward, in half of what full attention's scores alone would take."""
    config = LongShortRobertaConfig(max_position_embeddings=4098)
    model = hf.AutoModelForMaskedLM.from_config(config).cuda().train()
    tokens = torch.randint(5, 50_000, (4, 4096), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        hidden = model.base_model(tokens).last_hidden_state
    hidden.float().square().mean().backward()
    assert torch.cuda.max_memory_allocated() - before < 0.5 * 12 * 12 * 4 * 4096**2 * 2
