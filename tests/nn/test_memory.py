"""Peak memory grows with the length, not with its square."""

import subprocess
import sys

import pytest

PROGRAM = r"""
import re, sys, torch
from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention
torch.set_num_threads(2)
kind, n = sys.argv[1], int(sys.argv[2])
if kind == "sequence":
    layer, rest = LongShortAttention(64, 2, window=32, rank=16), ()
elif kind == "text":
    layer, rest = CausalLongShortAttention(64, 2, window=32, segment=16, rank=1), ()
else:
    layer, rest = GridLongShortAttention(64, 2, window=7, rank=8, relative_bias=True), ((32, n // 32),)
def peak():
    return int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
def step(length, *rest):
    y = layer(torch.randn(1, length, 64, requires_grad=True), *rest)
    (y[0] if isinstance(y, tuple) else y).sum().backward()
step(64, *((8, 8),) if rest else ())
before = peak()
step(n, *rest)
print(peak() - before)
"""


def peak(kind, n):
    """KiB that a forward and backward pass over n tokens adds, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind, str(n)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from Linux's /proc")
@pytest.mark.parametrize("kind", ["sequence", "text", "image"])
def test_memory_is_linear(kind):
    """From 2k to 32k tokens, 16 times as many, at most 16 times the memory; 8k to 32k, at most 4 times, within 15 %.

    Full attention's scores alone would be 8 GiB at 32k.
    """
    small, middle, large = (peak(kind, n) for n in (2048, 8192, 32768))
    assert large <= 16 * small * 1.15
    assert large <= 4 * middle * 1.15
    assert large < 700 * 1024
