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
    plain = plain and len({m.bias is None for m in linear[:3]}) == 1
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
        w = torch.cat([w_q, w_k, w_v])  # one product reads x once
        raw = F.linear(x, w, None if b_q is None else torch.cat([b_q, b_k, b_v]))
        q, k_raw, v_raw = raw.split(x.shape[2], dim=2)
        q = split(q, heads)
        k, v = (split(t, heads) for t in normalise(k_raw, v_raw, local, local_b, eps))
        logits = F.linear(x, w_p, b_p)
        k_sum, v_sum, sums = project_and_sum(logits, k, v, segment, mask)
        k_rows, v_rows = (split(t, heads) for t in normalise(merge(k_sum), merge(v_sum), far, far_b, eps))
        out, lse = operator.forward(q, k, v, k_rows, v_rows, *inputs)
        if mask is not None:
            out = out.masked_fill(~mask[:, None, :, None], 0.0)

        made = (raw, k, v, logits, k_sum, v_sum, sums, k_rows, v_rows, out, lse)
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
        from longshort.ops.triton.norm import write_gradients
        from longshort.ops.triton.projection import project_backward

        operator, heads, eps, segment = ctx.settings
        saved = ctx.saved_tensors
        raw, k, v, logits, k_sum, v_sum, sums, k_rows, v_rows, out, lse = saved[:11]
        left = iter(saved[11:])
        mask, x, *rest = (next(left) if t is None else t[0] for t in ctx.others)
        w_q, w_k, w_v, w_p, w_o, local, far = rest[:14:2]
        inputs = rest[14:]
        width = x.shape[2]

        needed = ctx.needs_input_grad
        d_w_o, d_b_o = of_weights(d_y, merge(out), *needed[14:16])
        d_out = split(d_y @ w_o, heads)
        if mask is not None:
            d_out = d_out.masked_fill(~mask[:, None, :, None], 0.0)
        q, k_raw, v_raw = raw.split(width, dim=2)
        d_raw = torch.empty_like(raw)
        d_q, d_k_raw, d_v_raw = d_raw.split(width, dim=2)
        grads = operator.backward(
            d_out, out, lse, split(q, heads), k, v, k_rows, v_rows, *inputs, into=split(d_q, heads)
        )
        del d_out  # memory: what is alive at once decides how long a sequence fits
        d_k, d_v, d_k_rows, d_v_rows = grads[1:5]
        found = dict(zip(operator.tensors[5:], grads[5:], strict=False))  # by the number of the operator's input
        d_k_sum, d_v_sum = (torch.empty_like(merge(t)) for t in (k_sum, v_sum))
        d_far, d_far_b = write_gradients(
            merge(d_k_rows), merge(d_v_rows), merge(k_sum), merge(v_sum), far, eps, d_k_sum, d_v_sum
        )
        d_logits, _, _ = project_backward(
            split(d_k_sum, heads), split(d_v_sum, heads), k_sum, v_sum, sums, logits, k, v, segment, mask, d_k, d_v
        )
        d_local, d_local_b = write_gradients(merge(d_k), merge(d_v), k_raw, v_raw, local, eps, d_k_raw, d_v_raw)
        del grads, d_k, d_v

        d_x = None
        if needed[5]:
            d_x = (d_raw.flatten(0, 1) @ torch.cat([w_q, w_k, w_v])).addmm_(d_logits.flatten(0, 1), w_p).view_as(x)
        of_three = of_weights(d_raw, x, any(needed[6:12:2]), any(needed[7:12:2]))
        d_w, d_b = ([None] * 3 if d is None else d.split(width) for d in of_three)
        d_weights = [t for both in zip(d_w, d_b, strict=True) for t in both]
        d_weights += of_weights(d_logits, x, *needed[12:14])
        d_weights += [d_w_o, d_b_o, d_local, d_local_b, d_far, d_far_b]
        d_inputs = [found.get(i) for i in range(5, 5 + len(inputs))]
        return None, None, None, None, None, d_x, *d_weights, *d_inputs


def of_weights(d: Tensor, x: Tensor, weight: bool, bias: bool) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a linear layer's weight and bias, if wanted, from those of its output and from its input."""
    from longshort.ops.triton.sums import sum_of_lines

    d, x = d.flatten(0, 1), x.flatten(0, 1)
    return d.mT @ x if weight else None, sum_of_lines(d) if bias else None
