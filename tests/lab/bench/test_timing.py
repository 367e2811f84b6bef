"""Steps take turns; a GPU is timed by its own events, and only there is memory known."""

import pytest
import torch

from longshort.lab.bench import timing
from longshort.lab.bench.timing import Work, burst, milliseconds, peak_mib


def test_steps_take_turns_and_the_first_turn_does_not_count(monkeypatch):
    order, clock = [], iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock) ** 2)
    times = milliseconds(lambda: order.append("ours"), lambda: order.append("theirs"), repeats=3)
    assert order == ["ours", "theirs"] * 4
    assert times == [1e3 * (9**2 - 8**2), 1e3 * (11**2 - 10**2)]  # the second of three, after the warm-up


def test_a_gpu_is_timed_in_bursts(monkeypatch):
    asked = []
    monkeypatch.setattr(timing, "by_events", lambda step, count: asked.append((step(), count)) or step())
    assert milliseconds(lambda: 20.0, lambda: 400.0, repeats=2, device="cuda") == [20.0, 400.0]
    assert asked == [(20.0, 1)] * 2 + [(400.0, 1)] * 2 + [(20.0, 3), (400.0, 1)] * 3


@pytest.mark.parametrize(("ms", "steps"), [(0.01, 20), (10.0, 5), (49.0, 2), (50.0, 1), (300.0, 1)])
def test_bursts_last_fifty_milliseconds(ms, steps, monkeypatch):
    monkeypatch.setattr(timing, "by_events", lambda step, count: ms)
    assert burst(lambda: None) == steps


def test_memory_of_a_cpu_is_unknown():
    assert peak_mib(lambda: pytest.fail("ran"), "cpu") is None


def test_gradients_do_not_add_up_over_steps():
    x = torch.ones(3, requires_grad=True)
    work = Work(lambda: 2 * x, (x,), torch.tensor([1.0, 2.0, 3.0]))
    for _ in range(2):
        work.forward_backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
    work.clear()
    work.forward()
    assert x.grad is None


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@cuda
def test_on_a_gpu_time_and_memory_are_measured():
    a = torch.randn(1024, 1024, device="cuda")
    assert milliseconds(lambda: a @ a, repeats=2, device="cuda")[0] > 0
    assert peak_mib(lambda: torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda"), "cuda") == pytest.approx(3, abs=1)


@cuda
def test_a_replayed_graph_writes_its_gradients():
    x = torch.ones(3, device="cuda", requires_grad=True)
    step = timing.graphed(Work(lambda: 2 * x, (x,), torch.ones(3, device="cuda")))
    for _ in range(2):
        step()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
