"""The three layers as functions of one tensor, for tests that treat them alike, some in processes of their own."""

import os
import warnings

import torch
import torch.distributed as dist
from torch import nn

from longshort import CausalLongShortAttention, GridLongShortAttention, LongShortAttention


class Sequence(nn.Module):
    def __init__(self, **keywords):
        super().__init__()
        self.attention = LongShortAttention(16, 2, window=8, rank=3, global_tokens=1, **keywords)

    def forward(self, x):
        return self.attention(x)


class Text(nn.Module):
    def __init__(self, **keywords):
        super().__init__()
        self.attention = CausalLongShortAttention(16, 2, window=8, segment=4, rank=2, **keywords)

    def forward(self, x):
        return self.attention(x)[0]


class Image(nn.Module):
    def __init__(self, **keywords):
        super().__init__()
        self.attention = GridLongShortAttention(16, 2, window=4, rank=3, relative_bias=True, **keywords)

    def forward(self, x):
        height, width = x.shape[2:]
        y = self.attention(x.flatten(2).transpose(1, 2), size=(height, width))
        return y.transpose(1, 2).unflatten(2, (height, width))


LENGTHS = [100, 37, 64, 129, 257, 200, 31, 77, 180, 18]
SIZES = [(12, 30), (7, 9), (5, 40), (9, 9), (20, 11), (13, 14), (8, 8), (17, 3), (6, 50), (31, 2)]
INPUTS = {
    Sequence: [(2, n, 16) for n in LENGTHS],
    Text: [(2, n, 16) for n in LENGTHS],
    Image: [(2, 16, *size) for size in SIZES],
}


def train_in_parallel(rank, kind, folder):
    """One process of two: its half of the batch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer = nn.parallel.DistributedDataParallel(kind())
    x = torch.randn(INPUTS[kind][0], generator=torch.Generator().manual_seed(5))
    layer(x[rank : rank + 1]).pow(2).mean().backward()
    if rank == 0:
        torch.save([p.grad for p in layer.parameters()], f"{folder}/gradients.pt")
    dist.barrier()
    os._exit(0)  # an orderly exit races with gloo's threads and now and then aborts


def output(layer, *inputs):
    """Of any layer, without its cache."""
    y = layer(*inputs)
    return y[0] if isinstance(y, tuple) else y
