"""A whole layer as one step of autograd, where it runs on the kernels.

A small layer takes longer to launch than to compute: most of the time goes into PyTorch's bookkeeping of some sixty
operations. Here forward and backward are written out, one after the other, so that it keeps one record. What comes out
is the same as from the modules, which are taken instead wherever someone may want to see them: under the compiler and
autocast, with hooks, adapters or parametrisations in the place of a linear layer.

B batch, N tokens, C width, H heads, D head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from longshort.geometry import Geometry
from longshort.nn.norm import _LayerNorm
from longshort.ops import FEW
from longshort.ops.fused import why_not
from longshort.ops.norm import WIDEST
from longshort.ops.precision import autocast_dtype

if TYPE_CHECKING:
    from longshort.nn.attention import Projections


def unwatched(module: nn.Module) -> bool:
    """No hook of any kind sees the module, and no one has given it another forward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and "forward" not in vars(module)


def fusible(layer: Projections, x: Tensor, geometry: Geometry, positions: bool = False) -> bool:
    """Whether the layer, on x [B, N, C], can go as one step."""
    if torch.compiler.is_compiling() or autocast_dtype(x) is not None or layer.impl not in ("auto", "triton"):
        return False
    head = x.new_empty(0, layer.width // layer.heads)
    runs = x.is_cuda or layer.impl == "triton"
    runs = runs and why_not(head, geometry, positions) is None and layer.width <= WIDEST
    linear = (layer.query, layer.key, layer.value, layer.rows, layer.out)
    norms = (layer.norm.local, layer.norm.global_)
    plain = all(type(m) is nn.Linear for m in linear) and all(type(m) is _LayerNorm for m in norms)
    plain = plain and all(unwatched(m) for m in (*linear, *norms)) and not _has_any_global_hook()
    return runs and plain and norms[0].eps == norms[1].eps and layer.rank > 0 and x.shape[1] > FEW


def run_fused(
    layer: Projections, x: Tensor, operator: Any, rest: tuple[Any, ...], mask: Tensor | None, segment: int | None
) -> tuple[Tensor, ...]:
    """The output; and, for a cache, keys, values, rows of both, all [B, H, any, D], and logits [B, N, H·R].

    operator, rest: the attention and what it takes beside queries, keys, values and rows. mask: for the projection.
    """
    linear = (layer.query, layer.key, layer.value, layer.rows, layer.out)
    weights: list[Any] = [t for m in linear for t in (m.weight, m.bias)]
    weights += [t for m in (layer.norm.local, layer.norm.global_) for t in (m.weight, m.bias)]
    return _Layer.apply(operator, layer.heads, layer.norm.local.eps, segment, mask, x, *weights, *rest)


def split(t: Tensor, heads: int) -> Tensor:
    return t.unflatten(2, (heads, -1)).transpose(1, 2)  # [B, N, C] → [B, H, N, D]


def merge(t: Tensor) -> Tensor:
    return t.transpose(1, 2).flatten(2)  # [B, H, N, D] → [B, N, C]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Any, heads: int, eps: float, segment: Any, mask: Any, x: Tensor, *rest: Any) -> Any:
        from longshort.ops.triton.norm import normalise
        from longshort.ops.triton.projection import project_and_sum

        (w_q, b_q, w_k, b_k, w_v, b_v, w_p, b_p, w_o, b_o, local, local_b, far, far_b), inputs = rest[:14], rest[14:]
        q = split(F.linear(x, w_q, b_q), heads)
        raw = F.linear(x, w_k, b_k), F.linear(x, w_v, b_v)
        k, v = (split(t, heads) for t in normalise(*raw, local, local_b, eps))
        logits = F.linear(x, w_p, b_p)
        k_sum, v_sum, sums = project_and_sum(logits, k, v, segment, mask)
        k_rows, v_rows = (split(t, heads) for t in normalise(merge(k_sum), merge(v_sum), far, far_b, eps))
        out, lse = operator.forward(q, k, v, k_rows, v_rows, *inputs)
        if mask is not None:
            out = out.masked_fill(~mask[:, None, :, None], 0.0)

        made = (q, *raw, k, v, logits, k_sum, v_sum, sums, k_rows, v_rows, out, lse)
        tensors = [t for t in (mask, x, *rest) if isinstance(t, Tensor)]
        ctx.save_for_backward(*made, *tensors)
        ctx.others = [None if isinstance(t, Tensor) else (t,) for t in (mask, x, *rest)]
        ctx.settings = operator, heads, eps, segment
        kept = (k, v, k_rows, v_rows, logits)
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        lines = merge(out).flatten(0, 1)
        y = lines @ w_o.mT if b_o is None else torch.addmm(b_o, lines, w_o.mT)
        return torch.ops.aten._unsafe_view(y, x.shape), *kept  # not a view, which no one could write into

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_y: Tensor, *_: Any) -> Any:
        with torch.autocast(d_y.device.type, enabled=False):
            return _Layer.gradients(ctx, d_y)

    @staticmethod
    def gradients(ctx: Any, d_y: Tensor) -> Any:
        from longshort.ops.triton.norm import normalise_backward
        from longshort.ops.triton.projection import project_backward

        operator, heads, eps, segment = ctx.settings
        saved = ctx.saved_tensors
        q, k_raw, v_raw, k, v, logits, k_sum, v_sum, sums, k_rows, v_rows, out, lse = saved[:13]
        left = iter(saved[13:])
        mask, x, *rest = (next(left) if t is None else t[0] for t in ctx.others)
        (w_q, _, w_k, _, w_v, _, w_p, _, w_o, _, local, local_b, far, far_b), inputs = rest[:14], rest[14:]

        needed = ctx.needs_input_grad
        d_w_o, d_b_o = of_weights(d_y, merge(out), *needed[14:16])
        d_out = split(d_y @ w_o, heads)
        if mask is not None:
            d_out = d_out.masked_fill(~mask[:, None, :, None], 0.0)
        grads = operator.backward(d_out, out, lse, q, k, v, k_rows, v_rows, *inputs)
        found = dict(zip(operator.tensors, grads, strict=False))  # by the number of the operator's input
        d_q, d_k, d_v, d_k_rows, d_v_rows = grads[:5]
        d_k_sum, d_v_sum, d_far, d_far_b = normalise_backward(
            merge(d_k_rows), merge(d_v_rows), k_rows, v_rows, merge(k_sum), merge(v_sum), far, far_b, eps
        )
        d_k_sum, d_v_sum = split(d_k_sum, heads), split(d_v_sum, heads)
        d_logits, d_k_more, d_v_more = project_backward(
            d_k_sum, d_v_sum, k_sum, v_sum, sums, logits, k, v, segment, mask
        )
        d_k, d_v = merge(d_k).add_(merge(d_k_more)), merge(d_v).add_(merge(d_v_more))
        d_k, d_v, d_local, d_local_b = normalise_backward(d_k, d_v, k, v, k_raw, v_raw, local, local_b, eps)

        parts = [(merge(d_q), w_q), (d_k, w_k), (d_v, w_v), (d_logits, w_p)]
        d_x = None
        d_weights: list[Tensor | None] = []
        for i, (d, w) in enumerate(parts):
            if needed[5]:
                lines = d.flatten(0, 1)
                d_x = lines @ w if d_x is None else d_x.addmm_(lines, w)
            d_weights += of_weights(d, x, *needed[6 + 2 * i : 8 + 2 * i])
        d_weights += [d_w_o, d_b_o, d_local, d_local_b, d_far, d_far_b]
        d_inputs = [found.get(i) for i in range(5, 5 + len(inputs))]
        return None, None, None, None, None, None if d_x is None else d_x.view_as(x), *d_weights, *d_inputs


def of_weights(d: Tensor, x: Tensor, weight: bool, bias: bool) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a linear layer's weight and bias, if wanted, from those of its output and from its input."""
    d, x = d.flatten(0, 1), x.flatten(0, 1)
    return d.mT @ x if weight else None, d.sum(dim=0) if bias else None
