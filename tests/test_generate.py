"""Sampling: greedy is greedy, samples follow the probabilities, and caches change nothing but the work."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from longshort.generate import Sampling, generate
from longshort.models import CharLMConfig

TINY = CharLMConfig(layers=2, width=16, heads=2, feedforward=24, window=8, segment=4, rank=2)
GREEDY = Sampling(temperature=0)
PROMPT = b"The first of many"
each = pytest.mark.parametrize("positions", ["relative", "rotary", "none"])


def model_of(**changes):
    torch.manual_seed(0)
    model = replace(TINY, **changes).build().double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model


def from_scratch(model, prompt, count, sampling, seed=0):
    """The same without caches: all the text is read again for every character."""
    random, text = torch.Generator().manual_seed(seed), list(prompt)
    model.eval()
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([text]))[0][0, -1]
            text.append(int(torch.multinomial(sampling.probabilities(logits), 1, generator=random)))
    return bytes(text[len(prompt) :])


@each
def test_temperature_0_takes_the_likeliest(positions):
    model, text = model_of(positions=positions), list(PROMPT)
    made = list(generate(model, PROMPT, 20, GREEDY))
    with torch.no_grad():
        for _ in range(20):
            text.append(int(model(torch.tensor([text]))[0][0, -1].argmax()))
    assert made == text[len(PROMPT) :]
    assert made == list(generate(model, PROMPT, 20, Sampling(temperature=1.0, top_k=1)))
    assert made == list(generate(model, PROMPT, 20, Sampling(temperature=1.0, top_p=1e-6)))
    assert made == list(generate(model, PROMPT, 20, Sampling(temperature=1e-30)))


@each
def test_caches_change_nothing(positions):
    model, sampling = model_of(positions=positions, window=(8, 9), rank=(2, 0)), Sampling(top_k=40, top_p=0.9)
    assert bytes(generate(model, PROMPT, 25, sampling, seed=0)) == from_scratch(model, PROMPT, 25, sampling)


@each
def test_the_block_of_the_prompt_does_not_matter(positions):
    model = model_of(positions=positions)
    texts = {bytes(generate(model, PROMPT, 9, seed=0, block=block)) for block in (None, 1, 3, 16, 17, 100)}
    assert len(texts) == 1


def test_a_prompt_is_read_in_blocks_of_the_models_memory():
    model, prompt = model_of(memory=16), bytes(range(200))
    texts = [bytes(generate(model, prompt, 9, GREEDY, block=block)) for block in (None, 16, 200)]
    assert texts[0] == texts[1] != texts[2]


def test_a_seed_decides_the_text():
    model = model_of()
    first, again, other = (bytes(generate(model, PROMPT, 20, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert bytes(generate(model, PROMPT, 20)) != bytes(generate(model, PROMPT, 20))


class Fixed(nn.Module):
    """The same scores whatever was read; keeps what it was given."""

    config = TINY

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.blocks = []

    def forward(self, tokens, caches=None):
        assert not torch.is_grad_enabled() and not self.training
        self.blocks.append(tokens[0].tolist())
        return self.logits.expand(*tokens.shape, -1), (caches or 0) + tokens.shape[1]


def test_everything_is_read_once():
    model = Fixed([0.0, 0.0])
    made = list(generate(model, bytes([1, 0, 1, 1, 0]), 4, seed=0, block=2))
    assert model.blocks == [[1, 0], [1, 1], [0], *([byte] for byte in made[:-1])]
    assert len(made) == 4 and torch.is_grad_enabled()


def test_samples_follow_the_probabilities():
    probabilities, n = [0.5, 0.3, 0.15, 0.05], 3_000
    model = Fixed([math.log(p) for p in probabilities])
    counts = Counter(generate(model, b"\0", n, Sampling(temperature=1.0), seed=0))
    for i, p in enumerate(probabilities):
        assert abs(counts[i] - n * p) < 4 * math.sqrt(n * p * (1 - p))


PROBABILITIES = [0.15, 0.4, 0.05, 0.3, 0.1]


@pytest.mark.parametrize(
    "sampling, expected",
    [
        (Sampling(1.0), PROBABILITIES),
        (Sampling(0.5), [p**2 / 0.285 for p in PROBABILITIES]),
        (Sampling(0.0), [0, 1, 0, 0, 0]),
        (Sampling(5e-324), [0, 1, 0, 0, 0]),
        (Sampling(1.0, top_k=2), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(1.0, top_k=99), PROBABILITIES),
        (Sampling(1.0, top_p=0.39), [0, 1, 0, 0, 0]),
        (Sampling(1.0, top_p=0.41), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(1.0, top_p=0.69), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(1.0, top_p=0.71), [3 / 17, 8 / 17, 0, 6 / 17, 0]),
        (Sampling(1.0, top_p=1.0), PROBABILITIES),
        (Sampling(1.0, top_k=2, top_p=0.84), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(1.0, top_k=4, top_p=0.41), [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(0.5, top_p=0.6), [0, 16 / 25, 0, 9 / 25, 0]),
    ],
    ids=str,
)
def test_the_likeliest_are_kept_and_no_more_than_needed(sampling, expected):
    made = sampling.probabilities(torch.tensor(PROBABILITIES).log())
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


def test_a_tie_takes_no_more_than_were_asked_for():
    made = Sampling(1.0, top_k=3).probabilities(torch.zeros(9, dtype=torch.bfloat16))
    assert made.dtype == torch.float32 and (made > 0).sum() == 3


@pytest.mark.parametrize("memory", [None, 12])
def test_caches_grow_by_rank_rows_a_segment_up_to_the_memory(memory):
    model, seen = model_of(memory=memory), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output[1]))
    list(generate(model, b"x", 40, seed=0))
    assert len(seen) == 40
    for read, caches in enumerate(seen, start=1):
        for cache in caches:
            assert cache.k_global.shape[2] == min(read, memory or read) // 4 * 2
            assert cache.k.shape[2] == min(read, 8)


def test_nothing_is_asked_of_the_model_in_vain():
    model = Fixed([0.0, 1.0])
    assert list(generate(model, b"\0", 0)) == []
    text = generate(model, b"\0", 10**9, seed=0)
    assert [next(text) for _ in range(3)] and len(model.blocks) == 1 + 3  # an endless text is made as it is asked for


@pytest.mark.parametrize(
    "prompt, count, keywords, words",
    [
        (b"", 5, {}, "prompt is empty"),
        (b"x", -1, {}, "count must not be negative, got -1"),
        (b"x", 5, dict(block=0), "block must be at least 1, got 0"),
        (b"x", 5, dict(seed=2**63), "seed must be at least 0 and below"),
        (b"x", 5, dict(seed=-1), "seed must be at least 0 and below"),
        ("x", 5, {}, "prompt must be bytes, got str"),
    ],
)
def test_what_cannot_go_on_is_refused_at_once(prompt, count, keywords, words):
    with pytest.raises(ValueError, match=words):
        generate(Fixed([0.0]), prompt, count, **keywords)


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(temperature=-0.1), "temperature must be a number of at least 0, got -0.1"),
        (dict(temperature=math.nan), "temperature"),
        (dict(top_k=0), "top_k must be at least 1, got 0"),
        (dict(top_p=0.0), "top_p must be above 0 and at most 1, got 0.0"),
        (dict(top_p=1.1), "top_p"),
    ],
)
def test_bad_sampling_is_refused_by_name(keywords, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**keywords)
