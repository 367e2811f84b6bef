"""Sums over lines against PyTorch's, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from longshort.ops.triton.sums import sum_of_lines


@pytest.mark.parametrize(("lines", "columns"), [(1, 1), (300, 7), (65, 130), (4, 300)])
def test_it_is_the_sum(lines, columns):
    x = torch.randn(lines, columns)
    torch.testing.assert_close(sum_of_lines(x), x.sum(dim=0), rtol=0, atol=1e-4)


def test_parts_of_lines_and_other_strides():
    x = torch.randn(50, 90)
    for part in (x[:, 30:60], x.T, x[::3], torch.ones(()).expand(40, 20)):
        torch.testing.assert_close(sum_of_lines(part), part.sum(dim=0), rtol=0, atol=1e-4)


def test_sixteen_bits_are_summed_in_thirty_two():
    x = torch.full((5000, 3), 1.0, dtype=torch.float16)
    assert sum_of_lines(x).tolist() == [5000.0] * 3


def test_no_lines():
    assert sum_of_lines(torch.empty(0, 3)).tolist() == [0.0] * 3
