"""The layers compose with what PyTorch has: autocast, compiler, export, checkpointing, copies, data parallelism."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from layers import INPUTS, Image, Sequence, Text, train_in_parallel
from torch import nn
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

each = pytest.mark.parametrize("kind", INPUTS, ids=lambda kind: kind.__name__)


@each
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 6e-2), (torch.float16, 8e-3)], ids=str)
def test_autocast(kind, dtype, tolerance):
    torch.manual_seed(0)
    layer, x = kind(), torch.randn(INPUTS[kind][0], requires_grad=True)
    exact = layer(x)
    (expected,) = torch.autograd.grad(exact.pow(2).sum(), x)
    with torch.autocast("cpu", dtype=dtype):
        out = layer(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=tolerance)
    out.float().pow(2).sum().backward()
    assert x.grad.dtype == torch.float32
    assert (x.grad - expected).norm() / expected.norm() < tolerance
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_layer_in_half_precision(kind, dtype):
    torch.manual_seed(0)
    layer, x = kind(), torch.randn(INPUTS[kind][0])
    exact = layer(x)
    out = layer.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=8e-2 if dtype == torch.bfloat16 else 1e-2)


@each
def test_one_graph_for_all_lengths(kind):
    torch.manual_seed(0)
    layer, graphs = kind(), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    for shape in INPUTS[kind]:
        x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
        ours, expected = compiled(x), layer(y)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
        ours.pow(2).sum().backward()
        expected.pow(2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-4)
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", [Text, Image], ids=lambda kind: kind.__name__)
@torch._dynamo.config.patch(specialize_float=True)  # else it first takes an eps for a symbol, and then starts over
def test_the_compiler_differentiates_the_graph(kind):
    """Ahead of time, as a real backend has it done."""
    torch.manual_seed(0)
    layer, x = kind(), torch.randn(INPUTS[kind][0])
    torch._dynamo.reset()
    results = []
    for f in (layer, torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")):
        layer.zero_grad()
        f(x).pow(2).sum().backward()
        results.append([p.grad.clone() for p in layer.parameters()])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_the_compiler_takes_dropout():
    torch._dynamo.reset()
    compiled = torch.compile(Sequence(dropout=0.5), fullgraph=True, dynamic=True, backend="eager")
    x = torch.randn(2, 50, 16)
    assert not torch.equal(compiled(x), compiled(x))
    compiled.eval()
    assert torch.equal(compiled(x), compiled(x))


def exported(kind):
    """A layer, an example and its dynamic shapes."""
    torch.manual_seed(0)
    layer = kind().eval()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)
    if kind is Image:
        return layer, torch.randn(1, 16, 12, 20), {2: Dim("height", min=2, max=4096), 3: Dim("width", min=2, max=4096)}
    return layer, torch.randn(2, 50, 16), {1: Dim("length", min=3, max=1 << 20)}


@pytest.mark.parametrize("kind", [Sequence, Image], ids=lambda kind: kind.__name__)
def test_export_with_dynamic_size(kind):
    layer, x, shapes = exported(kind)
    program = torch.export.export(layer, (x,), dynamic_shapes=(shapes,)).module()
    for shape in INPUTS[kind]:
        x = torch.randn(shape) if kind is Sequence else torch.randn(1, *shape[1:])
        torch.testing.assert_close(program(x), layer(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [Sequence, Image], ids=lambda kind: kind.__name__)
def test_onnx_with_dynamic_size(kind):
    runtime = pytest.importorskip("onnxruntime")
    layer, x, shapes = exported(kind)
    with warnings.catch_warnings():  # the exporter's own
        warnings.simplefilter("ignore")
        program = torch.onnx.export(layer, (x,), dynamo=True, dynamic_shapes=(shapes,), verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    for shape in INPUTS[kind]:
        x = torch.randn(shape) if kind is Sequence else torch.randn(1, *shape[1:])
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(out, layer(x).detach().numpy(), rtol=0, atol=1e-5)


@each
def test_activation_checkpointing(kind):
    """The same gradients to the last bit, dropout included."""
    layer, x = kind(dropout=0.2), torch.randn(INPUTS[kind][0])
    results = []
    for f in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.manual_seed(1)
        layer.zero_grad()
        f(x).pow(2).sum().backward()
        results.append([p.grad.clone() for p in layer.parameters()])
    for plain, ours in zip(*results, strict=True):
        assert torch.equal(plain, ours)


@each
def test_copies(kind):
    layer, x = kind(), torch.randn(INPUTS[kind][0])
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), expected)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = kind()
    assert not torch.allclose(other(x), expected)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), expected)


@each
def test_data_parallel_over_gloo(kind, tmp_path):
    """Two processes with half of the batch each have the gradients of one with all of it."""
    mp.spawn(train_in_parallel, (kind, str(tmp_path)), nprocs=2)
    torch.manual_seed(0)
    layer = kind()
    x = torch.randn(INPUTS[kind][0], generator=torch.Generator().manual_seed(5))
    layer(x).pow(2).mean().backward()
    for ours, p in zip(torch.load(tmp_path / "gradients.pt"), layer.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, rtol=1e-4, atol=1e-6)
