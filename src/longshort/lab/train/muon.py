"""Muon for hidden matrices and AdamW for all other parameters, in one optimizer.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) is momentum whose update is made orthogonal: of the
momentum matrix U S Vᵀ it keeps U Vᵀ, so that all directions are learned at one pace. K matrices, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

# Of the odd polynomial a x + b x³ + c x⁵, as published by Keller Jordan. It does not converge to 1: it trades that for
# the steepest slope at 0, which lifts small singular values in few iterations, and lets them end between 0.68 and 1.21.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
TINY = 1e-12  # smallest Frobenius norm told from 0: a matrix of zeros stays one


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """U Vᵀ of each of [K, R, C], roughly, by Newton-Schulz iterations: products of matrices and nothing else.

    The polynomial acts on each singular value alone, and from a norm of 1 they all start in its basin. Norms are taken
    in float32; the products are bfloat16 on CUDA, which costs less than the polynomial's own spread.
    """
    if matrices.shape[1] > matrices.shape[2]:
        return orthogonalise(matrices.mT, iterations).mT
    a, b, c = COEFFICIENTS
    x = matrices / torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp_min(TINY)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(iterations):
        square = x @ x.mT  # [K, R, R]
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)  # [K, R, C]
    return x.to(matrices.dtype)


def orthogonalise_each(matrices: Sequence[Tensor], iterations: int) -> list[Tensor]:
    """Matrices of one shape, or of it transposed, share their products: small models wait for launches, not for sums.

    Every matrix that comes back is dense, as updating many weights in one launch asks for.
    """
    shapes: dict[tuple[int, int], list[int]] = {}
    for i, matrix in enumerate(matrices):
        shapes.setdefault((matrix.shape[0], matrix.shape[1]), []).append(i)
    result = list(matrices)
    for wide in dict.fromkeys((min(shape), max(shape)) for shape in shapes):
        found = [shape for shape in dict.fromkeys((wide, wide[::-1])) if shape in shapes]
        stacks = [torch.stack([matrices[i] for i in shapes[shape]]) for shape in found]  # [K, R, C] or [K, C, R]
        whole = orthogonalise(torch.cat([s if s.shape[1:] == wide else s.mT for s in stacks]), iterations)
        for shape, part in zip(found, whole.split([len(s) for s in stacks]), strict=True):
            parts = (part if shape == wide else part.mT.contiguous()).unbind()
            for i, matrix in zip(shapes[shape], parts, strict=True):
                result[i] = matrix
    return result


class MuonAdamW(torch.optim.Optimizer):
    """Groups with `muon=True` hold matrices and take Muon's update; the others take AdamW's, by `betas` and `eps`.

    An orthogonal R × C matrix has entries of root mean square 1 / √max(R, C). Muon's update is multiplied by
    `scale` · √max(R, C), so that its entries have root mean square `scale` whatever the shape. 0.2 is about what those
    of AdamW's have ("match RMS", Liu et al. 2025, arXiv 2502.16982), so that learning rates and weight decays that
    suit AdamW suit Muon. Weight decay is decoupled in both: weights shrink by lr · weight_decay.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 2e-3,
        momentum: float = 0.95,
        iterations: int = 5,
        scale: float = 0.2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        muon: bool = True,
    ) -> None:
        both = dict(muon=muon, lr=lr, weight_decay=weight_decay)
        super().__init__(
            params, dict(**both, momentum=momentum, iterations=iterations, scale=scale, betas=betas, eps=eps)
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("peak", group["lr"])
        if group["muon"]:
            check_matrices(group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Parameters without a gradient stay as they are. Gradients are only read."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in params):
                raise ValueError("gradients must be dense, got a sparse one: build its nn.Embedding with sparse=False")
            if params:
                (self._muon if group["muon"] else self._adamw)(params, group)
        return loss

    def _muon(self, params: list[Tensor], group: dict[str, Any]) -> None:
        check_matrices(params)  # again, because FSDP may have come since
        gradients = [p.grad for p in params if p.grad is not None]
        (momenta,) = self._state(params, momentum=torch.zeros_like)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov's
        updates = orthogonalise_each(ahead, group["iterations"])
        torch._foreach_mul_(updates, [group["scale"] * max(p.shape) ** 0.5 for p in params])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-group["lr"])

    def _adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        # The count is not called "step": torch leaves a state of that name on the device it was saved from.
        means, squares, counts = self._state(
            params, mean=torch.zeros_like, square=torch.zeros_like, updates=lambda p: p.new_zeros(())
        )
        beta1, beta2 = group["betas"]
        adamw(
            params,
            [p.grad for p in params if p.grad is not None],
            means,
            squares,
            [],
            counts,
            fused=True if all(p.is_cuda for p in params) else None,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state(self, params: list[Tensor], **first: Callable[[Tensor], Tensor]) -> list[list[Tensor]]:
        """For each name in `first` the states of all parameters, made by its function on their first update."""
        for p in params:
            if not self.state[p]:
                self.state[p].update({name: make(p) for name, make in first.items()})
        return [[self.state[p][name] for p in params] for name in first]


def check_matrices(params: list[Tensor]) -> None:
    # A DTensor is known by its mesh, which asks for no import of torch.distributed.
    if any(hasattr(p, "device_mesh") for p in params):
        raise ValueError("Muon needs whole matrices, but FSDP shards them; use AdamW or DDP")
    for p in params:
        if p.dim() != 2:
            raise ValueError(f"Muon needs whole matrices of two axes, got a parameter of shape {tuple(p.shape)}")
        if torch.finfo(p.dtype).bits < 32:
            raise ValueError(f"Muon needs weights of at least 32 bits, got {p.dtype}: use autocast for lower precision")
