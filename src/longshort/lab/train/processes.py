"""The processes of a run and what they agree on, through accelerate; and the model as it is spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, send_to_device
from torch import nn

Parallel = Literal["ddp", "fsdp"]


class Processes:
    """One process, or those that torchrun or `accelerate launch` started.

    parallel: every process has the whole model ("ddp"), or a share of it ("fsdp", fully_shard on each block).
    """

    def __init__(self, precision: str, *, cpu: bool = False, parallel: Parallel = "ddp") -> None:
        gpu = torch.cuda.is_available() and not cpu  # other devices, such as Apple's, are left alone
        if precision == "auto":
            precision = "bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32"
        self.precision = precision
        # Precision is ours to choose: an Accelerator keeps that of the first run for all others of a process.
        self.accelerator = Accelerator(mixed_precision="no", cpu=not gpu)
        self.sharded = parallel == "fsdp" or self.accelerator.distributed_type == DistributedType.FSDP
        self.device = self.accelerator.device
        if self.device.type == "cpu":
            self.device = torch.device("cpu")  # of several processes it is "cpu:0", which torch.load does not know
        self.index, self.count = self.accelerator.process_index, self.accelerator.num_processes
        if self.sharded and self.count == 1:
            raise ValueError("fsdp divides a model over processes, and there is one: start it with torchrun")

    @property
    def first(self) -> bool:
        return self.index == 0

    def spread(self, model: nn.Module) -> nn.Module:
        """The model on its device, its gradients shared by all processes."""
        model = model.to(self.device)
        if not self.sharded:
            return model if self.count == 1 else self.accelerator.prepare_model(model)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in blocks_of(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def bare(self, model: nn.Module) -> nn.Module:
        """The model itself, whatever it was wrapped in."""
        return self.accelerator.unwrap_model(model, keep_torch_compile=True)

    @contextmanager
    def whole(self, model: nn.Module) -> Iterator[nn.Module]:
        """The model itself with all its weights, so that processes need not call it equally often."""
        if self.sharded:
            from torch.distributed.fsdp import FSDPModule

            shards = [module for module in model.modules() if isinstance(module, FSDPModule)]
            for shard in shards:
                shard.set_reshard_after_forward(False, recurse=False)
                shard.unshard()
        yield self.bare(model)
        if self.sharded:
            for shard in shards:
                shard.set_reshard_after_forward(shard is not model, recurse=False)  # torch's own choice
                shard.reshard()

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def accumulating(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around a backward pass: gradients go to the other processes only after the last part of a batch."""
        if self.sharded:
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        if last or self.count == 1 or self.sharded:
            return nullcontext()
        return self.accelerator.no_sync(model)

    def send(self, batch: Any) -> Any:
        return send_to_device(batch, self.device, non_blocking=True)

    def total(self, numbers: Iterable[float]) -> list[float]:
        """Each number, added up over all processes."""
        values = torch.tensor(list(numbers), dtype=torch.float64, device=self.device)
        if self.count > 1:
            torch.distributed.all_reduce(values)
        return values.tolist()

    def any(self, here: bool) -> bool:
        """Whether it is so in any process. All must ask at the same time."""
        return self.total([float(here)])[0] > 0


def leave() -> None:
    """The other processes, when all is done."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """What a model has a list of, wherever the list is; not the lists inside of those."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else blocks_of(child)
