"""Packing without a GPU: the kernel is replaced, and what it leaves unwritten is no number."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from longshort.nn import spec
from longshort.ops import packed


def flash(q, k, v, starts, most, dropout):
    after = torch.arange(len(q)) >= starts[-1]
    for t in (q, k, v):
        t.register_hook(lambda g: torch.where(after[:, None, None], torch.nan, g))
    parts = []
    for start, end in pairwise(starts):
        assert end - start <= most
        heads = (t[start:end].transpose(0, 1) for t in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*heads).transpose(0, 1))
    return torch.cat([*parts, torch.full_like(q[starts[-1] :], torch.nan)])


def test_packed_attention_is_masked_attention(monkeypatch):
    monkeypatch.setattr(packed, "flash", flash)
    torch.manual_seed(0)
    three = [torch.randn(4, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.arange(9) < torch.tensor([9, 1, 5, 7])[:, None]
    mask[3, 2] = False
    g = torch.randn(4, 2, 9, 4, dtype=torch.float64) * mask[:, None, :, None]
    y = packed.packed_attention(*three, mask)
    expected = F.scaled_dot_product_attention(*three, attn_mask=mask[:, None, None, :]) * mask[:, None, :, None]
    torch.testing.assert_close(y, expected)
    found, wanted = (torch.autograd.grad((t * g).sum(), three) for t in (y, expected))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_packing_moves_real_tokens_to_the_front_in_their_order():
    mask = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
    tokens, places, starts = packed.packing(mask)
    assert tokens.tolist()[:3] == [0, 2, 7] and sorted(tokens.tolist()) == list(range(9))
    assert places[tokens].tolist() == list(range(9))
    assert starts.tolist() == [0, 2, 2, 3] and starts.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_gpu_nothing_is_packed(dtype):
    assert not packed.packable(torch.zeros(1, 2, 3, 8, dtype=dtype, device="cpu"))


def test_full_attention_packs_what_has_a_mask(monkeypatch):
    torch.manual_seed(0)
    layer, x = spec.FullAttention(8, 2).double(), torch.randn(2, 9, 8, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    plain, masked = layer(x), layer(x, mask)[mask]
    calls = []
    monkeypatch.setattr(spec, "packable", lambda q: True)
    monkeypatch.setattr(packed, "flash", lambda *given: calls.append(1) or flash(*given))
    assert torch.equal(layer(x), plain) and not calls
    torch.testing.assert_close(layer(x, mask)[mask], masked)
    assert len(calls) == 1
