"""Launching a compiled kernel without binding its arguments anew, which takes longer than many of these kernels run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST = 256  # calls that a kernel remembers


class Kernel:
    """Called as a Triton function is, `kernel[grid](*args, **constants)`: arguments by place, constants by name.

    Triton compiles for the constants, the dtypes and alignment of tensors, and whether integers are 1, divisible by 16,
    or too large for 32 bits; where all of these were met before, the compiled kernel is launched directly.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.compiled: dict[Any, Any] = {}
        self.met: dict[Any, Any] = {}
        left_alone = getattr(function, "do_not_specialize", None) or []
        self.general = {i for i, name in enumerate(function.arg_names) if name in left_alone}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            if not args[0].is_cuda:  # the interpreter
                self.function[grid](*args, **constants)
                return
            if args[0].get_device() != torch.cuda.current_device():
                with torch.cuda.device(args[0].device):
                    launch(*args, **constants)
                return
            same = self.same(args, constants)
            kernel = self.met.get(same)
            if kernel is None:
                key = self.key(args, constants)
                if key not in self.compiled:
                    self.compiled[key] = self.function[grid](*args, **constants)
                    return
                kernel = self.compiled[key]
                if len(self.met) >= MOST:  # a text that grows by a token has a new length every time
                    self.met.clear()
                self.met[same] = kernel
            places = self.function.arg_names[len(args) :]
            kernel[(grid[0], 1, 1)](*args, *(constants[name] for name in places))

        return launch

    def same(self, args: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        """Tells apart all calls that `key` tells apart, and more, in less time."""
        kinds = [(arg.dtype, arg.data_ptr() & 15) if isinstance(arg, Tensor) else (type(arg), arg) for arg in args]
        return (torch.cuda.current_device(), *kinds, *constants.items())

    def key(self, args: tuple[Any, ...], constants: dict[str, Any]) -> Any:
        kinds = [kind(arg, i not in self.general) for i, arg in enumerate(args)]
        return (torch.cuda.current_device(), *constants.items(), *kinds)


def kind(arg: Any, special: bool) -> Any:
    """All that Triton's code depends on; the value itself only of what is neither a tensor nor a number."""
    if isinstance(arg, Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, float):
        return float
    if isinstance(arg, int):
        return special and arg == 1, special and arg % 16 == 0, -(1 << 31) <= arg < 1 << 31
    return tuple(kind(a, special) for a in arg) if isinstance(arg, tuple) else arg
