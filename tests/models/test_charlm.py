"""Laws of the character language model: causal, continued by its caches, bounded by its memory, saved and compiled."""

import io
import json
import socket
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from longshort.models import CharLM, CharLMConfig
from longshort.models.charlm import PRESETS, Block

TINY = CharLMConfig(layers=2, width=16, heads=2, feedforward=24, window=8, segment=4, rank=2, vocabulary=17)
POSITIONS = ["relative", "rotary", "none"]
LAYERS = {
    "alike": {},
    "of their own": dict(window=(9, 5), rank=(0, 3)),
    "without rows": dict(window=(5, 8), rank=0),
}
each = pytest.mark.parametrize("positions", POSITIONS)
layers = pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)


def model_of(seed=0, **changes):
    """Float64, in eval mode, with weights large enough that everything matters."""
    torch.manual_seed(seed)
    model = replace(TINY, **changes).build().double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3) if p.numel() else None
    return model


def text(n, batch=2, seed=0):
    return torch.randint(TINY.vocabulary, (batch, n), generator=torch.Generator().manual_seed(seed))


def in_blocks(model, tokens, sizes):
    """The logits, and the caches after each block."""
    outs, caches = [], [None]
    for block in tokens.split(list(sizes), dim=1):
        logits, made = model(block, caches[-1])
        outs.append(logits)
        caches.append(made)
    return torch.cat(outs, dim=1), caches[1:]


@each
@layers
def test_the_future_never_changes_the_past(positions, layers):
    model, tokens = model_of(positions=positions, **layers), text(45)
    before = model(tokens)[0]
    for cut in (1, 12, 29, 44):
        other = torch.cat([tokens[:, :cut], text(45 - cut, seed=1)], dim=1)
        torch.testing.assert_close(model(other)[0][:, :cut], before[:, :cut], rtol=0, atol=1e-12)


@each
@layers
@settings(max_examples=5)
@given(sizes=st.lists(st.integers(1, 19), min_size=2, max_size=5))
def test_blocks_of_any_sizes_equal_one_pass(positions, layers, sizes):
    model, tokens = model_of(positions=positions, **layers), text(sum(sizes))
    torch.testing.assert_close(in_blocks(model, tokens, sizes)[0], model(tokens)[0], rtol=0, atol=1e-12)


@each
@layers
def test_token_by_token_equals_one_pass(positions, layers):
    model, tokens = model_of(positions=positions, **layers), text(30)
    whole = model(tokens)[0]
    torch.testing.assert_close(in_blocks(model, tokens, [1] * 30)[0], whole, rtol=0, atol=1e-12)
    with torch.no_grad():  # which keeps tables of positions from token to token
        torch.testing.assert_close(in_blocks(model, tokens, [1] * 30)[0], whole, rtol=0, atol=1e-12)


def read_with_cut_caches(model, tokens, sizes, memory):
    """By the blocks alone: rows beyond `memory` are cut out of each cache by hand, and lengths are left as they are."""
    outs, caches = [], [None] * len(model.blocks)
    for block in tokens.split(list(sizes), dim=1):
        x = model.embedding(block)
        for i, layer in enumerate(model.blocks):
            x, cache = layer(x, caches[i])
            rows = memory // cache.geometry.segment * cache.geometry.rank
            first = max(cache.k_global.shape[2] - rows, 0)
            caches[i] = replace(cache, k_global=cache.k_global[:, :, first:], v_global=cache.v_global[:, :, first:])
        outs.append(model.norm(x) @ model.embedding.weight.T)
    return torch.cat(outs, dim=1)


@each
@layers
@pytest.mark.parametrize("memory", [1, 6, 13, 16])
def test_a_bounded_memory_is_a_text_of_which_only_so_much_is_kept(positions, layers, memory):
    model, sizes = model_of(positions=positions, memory=memory, **layers), [7, 16, 1, 1, 11, 3, 13]
    tokens = text(sum(sizes))
    logits, caches = in_blocks(model, tokens, sizes)
    torch.testing.assert_close(logits, read_with_cut_caches(model, tokens, sizes, memory), rtol=0, atol=1e-12)
    for cache in caches[-1]:
        assert cache.k_global.shape[2] == memory // 4 * cache.geometry.rank
        assert cache.length < max(memory, cache.k.shape[2]) + 4


@each
@layers
def test_filled_caches_say_the_same(positions, layers):
    model = model_of(positions=positions, memory=16, **layers)
    _, ours = model(text(5))
    theirs, ours = ours, model.filled(ours)
    assert all(cache.k.shape[2] == cache.geometry.kept for cache in ours)
    for i in range(30):
        token = text(1, seed=i)
        (y, ours), (expected, theirs) = model(token, ours), model(token, theirs)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)


def test_caches_without_a_bound_are_never_full():
    model = model_of()
    _, caches = model(text(5))
    assert all(ours is theirs for ours, theirs in zip(model.filled(caches), caches, strict=True))


def test_memory_bounds_what_is_seen():
    tokens = text(60)
    whole = model_of()(tokens)[0]
    for memory, sees_all in ((20, False), (59, False), (60, True)):
        logits, _ = in_blocks(model_of(memory=memory), tokens[:, :60], [30, 29, 1])
        assert torch.allclose(logits[:, :30], whole[:, :30], rtol=0, atol=1e-12)
        assert torch.allclose(logits[:, 59:], whole[:, 59:], rtol=0, atol=1e-12) == (sees_all or memory >= 56)


@pytest.mark.parametrize("name, least, most", [("small", 43.5e6, 44.5e6), ("large", 109e6, 111e6)])
def test_the_papers_sizes(name, least, most):
    with torch.device("meta"):
        model = CharLM.preset(name)
    assert least < sum(p.numel() for p in model.parameters()) < most


@pytest.mark.parametrize("name, millions", [("tiny", 2), ("base", 14), ("small", 38), ("large", 95)])
def test_presets_are_as_large_as_recipes_say(name, millions):
    with torch.device("meta"):
        model = replace(PRESETS[name], positions="rotary").build()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.1)


def test_the_embedding_is_the_output_layer():
    model, seen = model_of(), []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    logits = model(text(9))[0]
    assert torch.equal(logits, seen[0] @ model.embedding.weight.T)
    assert [name for name, p in model.named_parameters() if TINY.vocabulary in p.shape] == ["embedding.weight"]


@each
def test_a_block_that_adds_nothing_changes_nothing(positions):
    """Nothing normalises the residual stream between the blocks."""
    model, tokens = model_of(positions=positions), text(21)
    before = model(tokens)[0]
    idle = Block(model.config, 8, 2).double().eval()
    for p in (idle.attention.out.weight, idle.feedforward.out.weight, idle.feedforward.out.bias):
        nn.init.zeros_(p)
    model.blocks.insert(1, idle)
    assert torch.equal(model(tokens)[0], before)


def test_new_weights_are_small_and_smaller_where_they_meet_the_stream():
    torch.manual_seed(0)
    model = replace(TINY, width=64, feedforward=128, layers=8).build()
    for name, p in model.named_parameters():
        if p.dim() < 2 or name.endswith("bias"):
            assert torch.equal(p, torch.full_like(p, "norm" in name and name.endswith("weight"))), name
        else:
            into_stream = name.endswith(("attention.out.weight", "feedforward.out.weight"))
            assert p.std().item() == pytest.approx(0.005 if into_stream else 0.02, rel=0.15), name


@pytest.mark.parametrize("rates", [dict(dropout=0.3), dict(attention_dropout=0.3)], ids=lambda rates: next(iter(rates)))
def test_dropout_is_for_training_alone(rates):
    model, tokens = model_of(**rates), text(21)
    without = model_of()(tokens)[0]
    assert torch.equal(model(tokens)[0], without)
    model.train()
    first, second = model(tokens)[0], model(tokens)[0]
    assert not torch.allclose(first, without) and not torch.allclose(first, second)


def test_gradients_reach_every_parameter():
    for positions in POSITIONS:
        model, tokens = model_of(positions=positions), text(33)
        logits, caches = model(tokens[:, :16])
        logits, _ = model(tokens[:, 16:-1], caches)
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 17:].flatten()).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name


def test_bf16_autocast_is_close():
    for positions in POSITIONS:
        model, tokens = model_of(positions=positions).float(), text(40)
        exact = in_blocks(model, tokens, [17, 23])[0]
        with torch.autocast("cpu", torch.bfloat16):
            logits, caches = in_blocks(model, tokens, [17, 23])
        assert logits.dtype == torch.bfloat16 and caches[-1][0].k.dtype == torch.bfloat16
        assert (logits - exact).norm() / exact.norm() < 0.03
        logits.float().logsumexp(2).sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


CONFIGS = [
    TINY,
    replace(TINY, window=(9, 5), rank=(0, 3), positions="rotary", memory=20, dropout=0.1),
    replace(TINY, positions="none", dual_norm=False, attention_dropout=0.2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.positions)
def test_saved_and_loaded_it_is_the_same(config, tmp_path, monkeypatch):
    def refuse(*args, **keywords):
        raise AssertionError("a local folder needs no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    torch.manual_seed(0)
    model = config.build().eval()
    model.save_pretrained(tmp_path)
    assert {"model.safetensors", "config.json"} <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "config.json").read_text())["width"] == 16
    loaded = CharLM.from_pretrained(tmp_path)
    assert loaded.config == config and hash(loaded.config) == hash(config)
    theirs = loaded.state_dict()
    assert theirs.keys() == model.state_dict().keys()
    assert all(torch.equal(t, theirs[name]) for name, t in model.state_dict().items())
    assert torch.equal(loaded.eval()(text(21))[0], model(text(21))[0])


def test_caches_can_be_saved():
    model, tokens = model_of(memory=16), text(37)
    _, caches = model(tokens[:, :21])
    file = io.BytesIO()
    torch.save(caches, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(model(tokens[:, 21:], loaded)[0], model(tokens[:, 21:], caches)[0])


def step(model, tokens, caches):
    """Logits, gradients and caches of one step of training."""
    model.zero_grad()
    logits, caches = model(tokens[:, :-1], caches)
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return logits, [p.grad.clone() for p in model.parameters()], caches


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("positions, memory, counts", [("relative", 8, [1, 2]), ("rotary", 16, [1, 2, 3])])
def test_compiled_it_is_the_same_and_compiles_no_more_once_the_caches_are_full(positions, memory, counts):
    """One graph for all layers and a text's first block, one for each size of the caches, none later."""
    torch._dynamo.reset()
    model, compiled = (model_of(positions=positions, memory=memory).train() for _ in range(2))
    counter = CompileCounterWithBackend("aot_eager_decomp_partition")
    compiled.compile(backend=counter, fullgraph=True)
    tokens, ours, theirs = text(8 * 6 + 1), None, None
    for i in range(6):
        part = tokens[:, 8 * i : 8 * i + 9]
        logits, gradients, theirs = step(model, part, theirs)
        ours_logits, ours_gradients, ours = step(compiled, part, ours)
        torch.testing.assert_close(ours_logits, logits, rtol=0, atol=1e-11)
        for a, b in zip(ours_gradients, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
        assert counter.frame_count == counts[min(i, len(counts) - 1)], i
    torch._dynamo.reset()


def bad(**changes):
    return lambda: replace(TINY, **changes).build()


@pytest.mark.parametrize(
    "make, words",
    [
        (bad(layers=0), ["layers", "0"]),
        (bad(feedforward=0), ["feedforward", "0"]),
        (bad(vocabulary=0), ["vocabulary", "0"]),
        (bad(width=15), ["width 15", "heads 2"]),
        (bad(window=(8, 8, 8)), ["window", "3", "2 layers"]),
        (bad(rank=[1]), ["rank", "1", "2 layers"]),
        (bad(window=(8, 3)), ["window 3", "segment 4"]),
        (bad(rank=(1, -1)), ["rank", "-1"]),
        (bad(width=18, positions="rotary"), ["rotary", "9"]),
        (bad(positions="absolute"), ["positions", "absolute", "rotary"]),
        (bad(dropout=-0.1), ["dropout", "-0.1"]),
        (bad(dropout=1.0), ["dropout", "1.0"]),
        (bad(attention_dropout=-0.1), ["dropout", "-0.1"]),
        (bad(memory=0), ["memory", "0"]),
        (lambda: CharLM.preset("huge"), ["preset", "huge", "small", "large"]),
    ],
)
def test_a_bad_configuration_is_refused_by_name(make, words):
    with pytest.raises(ValueError) as e:
        make()
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.parametrize(
    "tokens, words",
    [
        (torch.zeros(2, 9), ["tokens", "float32", "(2, 9)"]),
        (torch.zeros(9, dtype=torch.long), ["tokens", "(9,)"]),
        (torch.zeros(2, 9, 1, dtype=torch.long), ["tokens", "(2, 9, 1)"]),
        (torch.zeros(2, 0, dtype=torch.long), ["tokens", "(2, 0)"]),
    ],
)
def test_what_are_no_tokens_is_refused(tokens, words):
    with pytest.raises(ValueError) as e:
        model_of()(tokens)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_caches_of_others_are_refused():
    model = model_of()
    _, caches = model(text(9))
    for given_, words in ((caches[:1], "caches are of 1 layers, and the model has 2"), ((), "caches are of 0 layers")):
        with pytest.raises(ValueError, match=words):
            model(text(9), given_)
    with pytest.raises(ValueError, match="cache is of batch 2 but x is of batch 3"):
        model(text(9, batch=3), caches)
    with pytest.raises(ValueError, match="cache is of another layer"):
        model_of(window=9)(text(9), caches)


def test_bytes_of_any_whole_dtype_are_taken():
    model, tokens = model_of(), text(9)
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(model(tokens.to(dtype))[0], model(tokens)[0])


def test_presets_are_the_papers():
    small, large = PRESETS["small"], PRESETS["large"]
    assert (small.layers, small.width, small.heads, small.feedforward, small.dropout) == (12, 512, 8, 2048, 0.2)
    assert (small.window, small.segment, small.rank, small.positions) == (512, 16, 1, "relative")
    assert large == replace(small, layers=30, dropout=0.4)
