"""For all tests: memory that nobody has written reads as NaN, and property tests draw the same examples every time."""

import gc
import os
from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when Triton is imported
    if find_spec("triton") is not None:
        from interpreter import quicken

        quicken()

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True  # torch.empty and its kin come filled with NaN

settings.register_profile("longshort", deadline=None, derandomize=True, max_examples=40, print_blob=True)
settings.load_profile("longshort")


def pytest_collection_modifyitems(items):
    """Those of JAX last: its threads are no good company for tests that fork processes."""
    items.sort(key=lambda item: "jax" in item.path.parts)


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved from here on."""
    from matplotlib.figure import Figure

    saved, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: saved.append(figure) or savefig(figure, *a, **k))
    return saved


@pytest.fixture(scope="module")
def one_thread():
    """For small models a second one costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory):
    """A cache for all tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def finished(request, data, tmp_path_factory):
    """The folder of a report that nobody disturbed, what it found and what it printed; by the file's own `do`, on its
    `data`. To be left as it is."""
    out = tmp_path_factory.mktemp("finished")
    return out, *request.module.do(out, data=data)


@pytest.fixture
def begun(monkeypatch):
    """The names of the runs that reports train from here on."""
    from longshort.lab.report import jobs

    names, train = [], jobs.train
    monkeypatch.setattr(jobs, "train", lambda run, *given, **more: names.append(run.name) or train(run, *given, **more))
    return names


def pytest_addoption(parser):
    parser.addoption("--device", help="where tensors are made: `pytest tests/ops --device cuda`")


def pytest_configure(config):
    if config.getoption("--device"):
        torch.set_default_device(config.getoption("--device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: to look through it for garbage, again and again, takes longer than many tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        settle()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def settled():
    """So does what a file leaves behind for good, such as the caches of the compiler."""
    yield
    if len(gc.get_objects()) > 100_000:
        settle()


def settle():
    gc.collect()
    gc.freeze()
