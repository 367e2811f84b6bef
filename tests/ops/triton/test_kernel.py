"""Which calls of a kernel may share what was compiled."""

from itertools import combinations

import pytest
import torch

pytest.importorskip("triton")

from longshort.ops.triton.kernel import Kernel

T = torch.empty(64)
CALLS = [
    ((T, 16, 0.5), {"D": 32}),
    ((T, 32, 0.5), {"D": 32}),
    ((T, 17, 0.5), {"D": 32}),
    ((T, 1, 0.5), {"D": 32}),
    ((T, 16, 1), {"D": 32}),
    ((T, 16, 1.0), {"D": 32}),
    ((T, 1 << 40, 0.5), {"D": 32}),
    ((T.half(), 16, 0.5), {"D": 32}),
    ((T[1:], 16, 0.5), {"D": 32}),
    ((None, 16, 0.5), {"D": 32}),
    ((T, 16, 0.5), {"D": 64}),
    ((T, 16, 0.5), {"D": 32, "maxnreg": 128}),
]


class Function:
    """Of a Triton function, what the launcher looks at."""

    arg_names = ("x", "n", "scale", "D")
    do_not_specialize = ()


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return Kernel(Function)


def test_what_is_compiled_apart_is_remembered_apart(kernel):
    for one, other in combinations(CALLS, 2):
        if kernel.key(*one) != kernel.key(*other):
            assert kernel.same(*one) != kernel.same(*other), (one[0][1:], other[0][1:])


def test_lengths_alike_share_a_kernel(kernel):
    assert kernel.key(*CALLS[0]) == kernel.key(*CALLS[1]) != kernel.key(*CALLS[2])
    assert len({kernel.key(*call) for call in CALLS}) == len(CALLS) - 2  # nor does a fraction need one of its own
