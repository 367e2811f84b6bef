"""The Triton kernels of dynamic projection give what `dynamic_projection` gives, with its gradients.

On a machine without a GPU they run in Triton's interpreter (TRITON_INTERPRET=1), hence the small sizes.
"""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from longshort.ops.projection import dynamic_projection
from longshort.ops.triton import projection
from longshort.ops.triton.projection import project

HEADS = 2
CASES = [  # tokens, width, rank, segment, masked: both kinds of kernel, one part and several, whole blocks and odd ends
    (1, 16, 1, None, False),
    (70, 33, 1, None, True),
    (70, 64, 2, None, False),
    (16, 16, 1, 1, True),
    (37, 24, 1, 3, True),
    (50, 64, 1, 16, False),
    (35, 16, 4, 16, True),
    (1, 16, 5, None, True),
    (70, 24, 17, None, True),
    (35, 64, 40, None, False),
    (4, 16, 5, 1, False),
    (11, 33, 17, 3, True),
    (40, 16, 5, 16, False),
]


def inputs(tokens: int, width: int, rank: int, batch: int = 2) -> list[Tensor]:
    """Logits and, as the modules have them, keys and values as views of [B, N, H·D]; in float64."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(tokens + width + rank)
    sizes = (HEADS * rank, HEADS * width, HEADS * width)
    logits, k, v = (torch.randn(batch, tokens, n, generator=generator, dtype=torch.float64) for n in sizes)
    return [2 * logits, *(t.unflatten(2, (HEADS, width)).transpose(1, 2) for t in (k, v))]


def run(function, tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Both rows, then the gradients of logits, k and v."""
    tensors = [t.to(dtype).requires_grad_() for t in tensors]
    rows = function(*tensors)
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    slopes = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in rows]
    return [*(t.detach() for t in rows), *torch.autograd.grad(rows, tensors, slopes)]


def plain(segment=None, mask=None):
    return lambda logits, k, v: dynamic_projection(logits, k, v, segment=segment, mask=mask)


def fused(segment=None, mask=None):
    return lambda logits, k, v: project(logits, k, v, segment, mask)


def error(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape and found.isfinite().all()
    return float((found.double() - expected).abs().max()) if found.numel() else 0.0


@pytest.mark.parametrize(("tokens", "width", "rank", "segment", "masked"), CASES)
def test_float32_equals_plain_pytorch(tokens, width, rank, segment, masked):
    tensors = inputs(tokens, width, rank)
    mask = torch.arange(tokens) % 5 < torch.tensor([[3], [4]]) if masked else None
    expected = run(plain(segment, mask), tensors, torch.float64)
    for found, exact in zip(run(fused(segment, mask), tensors, torch.float32), expected, strict=True):
        assert error(found, exact) <= 1e-5


@pytest.mark.parametrize(("tokens", "width", "rank", "segment"), [CASES[i][:4] for i in (2, 5, 8, 12)])
def test_float16_is_as_exact_as_plain_pytorch(tokens, width, rank, segment):
    tensors = [t.half().double() for t in inputs(tokens, width, rank)]
    mask = torch.arange(tokens) % 7 < torch.tensor([[6], [7]])
    expected = run(plain(segment, mask), tensors, torch.float64)
    usual = run(plain(segment, mask), tensors, torch.float16)
    for found, other, exact in zip(run(fused(segment, mask), tensors, torch.float16), usual, expected, strict=True):
        assert error(found, exact) <= 2 * error(other, exact) + 1e-4


@pytest.mark.parametrize(("rank", "segment"), [(1, None), (5, None), (1, 3), (5, 16)])
def test_where_all_is_padding_rows_and_gradients_are_zero(rank, segment):
    tensors, mask = inputs(50, 16, rank), torch.ones(2, 50, dtype=torch.bool)
    mask[0] = False
    mask[1, :36] = False  # a whole part of the sequence, and whole segments
    expected = run(plain(segment, mask), tensors, torch.float64)
    for t, exact in zip(run(fused(segment, mask), tensors, torch.float32), expected, strict=True):
        assert (t[0] == 0).all() and error(t, exact) <= 1e-5


@pytest.mark.parametrize("rank", [1, 5])
def test_what_does_not_count_is_not_looked_at(rank):
    """Padding and the tokens of the unfinished segment may be anything, and get the gradient 0."""
    tensors, mask = inputs(37, 16, rank), torch.ones(2, 37, dtype=torch.bool)
    mask[1, 10:20] = False
    expected = run(fused(16, mask), tensors, torch.float32)
    for t in tensors[1:]:
        t[:, :, 32:] = t[1, :, 10:20] = torch.nan
    tensors[0][:, 32:] = tensors[0][1, 10:20] = torch.nan
    for t, exact in zip(run(fused(16, mask), tensors, torch.float32), expected, strict=True):
        assert torch.equal(t, exact)
    assert (expected[2][:, 32:] == 0).all() and (expected[3][1, :, 10:20] == 0).all()


@pytest.mark.parametrize("rank", [1, 5])
def test_any_strides(rank):
    """Every second token of k, v by columns, logits by columns, one mask for the whole batch."""
    logits, k, v = inputs(20, 16, rank)
    tensors = [logits.mT.contiguous().mT, k.repeat_interleave(2, dim=2), v.mT.contiguous().mT]
    mask = (torch.arange(40) % 3 > 0).expand(2, 40)[:, ::2]
    exact = run(lambda logits, k, v: plain(3, mask)(logits, k[:, :, ::2], v), tensors, torch.float64)
    found = run(lambda logits, k, v: fused(3, mask)(logits, k[:, :, ::2], v), tensors, torch.float32)
    assert all(error(a, b) <= 1e-5 for a, b in zip(found, exact, strict=True))


def test_slopes_of_any_strides():
    """A sum has the gradient 1 everywhere: one number in memory."""
    logits, k, v = (t.float().requires_grad_() for t in inputs(20, 16, 1))
    k_rows, v_rows = project(logits, k, v, 3, None)
    dk, dv = torch.autograd.grad(k_rows.sum() + v_rows.sum(), (k, v))
    assert error(dk[:, :, :18].unflatten(2, (6, 3)).sum(3), torch.ones(2, HEADS, 6, 16)) <= 1e-5
    assert torch.equal(dk, dv)


@pytest.mark.parametrize(("rank", "segment"), [(0, None), (0, 3), (1, 30), (5, 30)])
def test_without_rows_gradients_are_zero(rank, segment):
    k_rows, v_rows, *gradients = run(fused(segment), inputs(20, 16, rank), torch.float32)
    assert k_rows.shape == v_rows.shape == (2, HEADS, 0, 16)
    assert all((t == 0).all() for t in gradients)


@pytest.mark.parametrize("rank", [1, 5])
def test_memory_is_laid_out_for_merging_heads(rank):
    tensors = inputs(20, 16, rank)
    k_rows, v_rows, dlogits, dk, dv = run(fused(3), tensors, torch.float32)
    for t in (k_rows, v_rows):
        assert t.transpose(1, 2).is_contiguous()
    assert dlogits.is_contiguous() and dk.stride() == tensors[1].stride() and dv.stride() == tensors[2].stride()


@pytest.mark.parametrize(("rank", "segment"), [(2, None), (17, None), (2, 3), (17, 3)])
def test_twice_the_same(rank, segment):
    tensors = inputs(40 if segment is None else 7, 16, rank, batch=1)
    first, second = (run(fused(segment), tensors, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("rank", [1, 5])
def test_is_a_well_behaved_operator(rank):
    tensors = [t.float().requires_grad_() for t in inputs(7, 16, rank, batch=1)]
    torch.library.opcheck(project.custom, (*tensors, 3, None))


def test_parts_cover_a_segment():
    for length in (1, 31, 32, 33, 70, 4096, 4097, 100_000):
        for rows in (1, 100, 5000):
            for rank in (1, 5, 254):
                plan = projection.make_plan(64, rank, length, torch.float16)
                parts, part = plan.divide(length, rows)
                assert (parts - 1) * part < length <= parts * part
