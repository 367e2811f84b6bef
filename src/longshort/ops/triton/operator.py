"""Functions that launch kernels, as a differentiable operation: for eager mode and, as custom operators, the compiler.

PyTorch's wrapper around custom operators takes longer than most of these kernels run, so eager mode goes past it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Operator:
    """`forward(*inputs)` gives results and what the backward pass needs besides them, as one tuple of tensors.

    `backward(*gradients of results, *that tuple, *inputs)` gives the gradients of the inputs whose numbers are
    `tensors`, in that order; it may leave out the last ones, if they are None. The fakes make the same, unwritten.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., tuple[Tensor, ...]],
        backward: Callable[..., Any],
        *,
        fake: Callable[..., tuple[Tensor, ...]],
        fake_backward: Callable[..., Any],
        tensors: list[int],
        results: int = 1,
    ) -> None:
        self.forward, self.backward, self.tensors, self.results = forward, backward, tensors, results
        self.custom = torch.library.custom_op(f"longshort::{name}", forward, mutates_args=())
        self.custom.register_fake(fake)
        self.custom_backward = torch.library.custom_op(f"longshort::{name}_backward", backward, mutates_args=())
        self.custom_backward.register_fake(fake_backward)
        self.custom.register_autograd(
            lambda ctx, *grads: self.gradients(ctx, self.custom_backward, grads[:results]), setup_context=keep
        )

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling():
            return self.custom(*inputs)[: self.results]
        return _Eager.apply(self, *inputs)

    def gradients(self, ctx: Any, backward: Callable[..., Any], grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        output, inputs = kept(ctx)
        found = dict(zip(self.tensors, backward(*grads, *output, *inputs), strict=False))
        return tuple(found.get(i) for i in range(len(inputs)))


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Any:
        output = operator.forward(*inputs)
        ctx.operator = operator
        keep(ctx, inputs, output)
        return output[: operator.results]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with torch.autocast(grads[0].device.type, enabled=False):
            return None, *ctx.operator.gradients(ctx, ctx.operator.backward, grads)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """For the backward pass: all that came out, and all that went in."""
    ctx.is_tensor = [isinstance(t, Tensor) for t in inputs]
    ctx.others = [t for t in inputs if not isinstance(t, Tensor)]
    ctx.outputs = len(output)
    ctx.save_for_backward(*output, *(t for t in inputs if isinstance(t, Tensor)))


def kept(ctx: Any) -> tuple[list[Tensor], list[Any]]:
    saved = ctx.saved_tensors  # asked for once: checkpointing computes them anew each time
    tensors, others = iter(saved[ctx.outputs :]), iter(ctx.others)
    return list(saved[: ctx.outputs]), [next(tensors if is_tensor else others) for is_tensor in ctx.is_tensor]
