"""The learning rate rises to its peak, stays there, falls to its end, and never jumps."""

from itertools import pairwise

import pytest

from longshort.lab.runs.schedule import Schedule

FALLING = ("linear", "cosine", "polynomial")
STEPS = 101


def factors(schedule, steps=STEPS):
    return [schedule.factor(step, steps) for step in range(steps + 1)]


@pytest.mark.parametrize("kind", ("constant", *FALLING))
def test_warmup_is_a_straight_line_that_ends_at_the_peak(kind):
    schedule = Schedule(kind, warmup=10)
    assert factors(schedule)[:11] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])
    assert schedule.factor(9, STEPS) == schedule.factor(10, STEPS) == 1.0


def test_constant_stays_at_its_peak():
    assert set(factors(Schedule())) == {1.0}


@pytest.mark.parametrize("kind", FALLING)
@pytest.mark.parametrize("final", (0.0, 0.1, 1.0))
@pytest.mark.parametrize("warmup, hold", [(0, 0.0), (7, 0.0), (7, 0.5), (0, 0.83)])
def test_falls_without_a_jump_to_its_end(kind, final, warmup, hold):
    values = factors(Schedule(kind, warmup=warmup, final=final, hold=hold))[warmup:]
    falls = [a - b for a, b in pairwise(values)]
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(final, abs=1e-12)
    assert all(0 <= fall < 0.15 for fall in falls)


@pytest.mark.parametrize("kind", FALLING)
def test_no_update_is_wasted_on_a_rate_of_zero(kind):
    assert min(factors(Schedule(kind, warmup=3))[:-1]) > 0


@pytest.mark.parametrize("kind", FALLING)
def test_holds_its_peak_for_a_share_of_the_steps_after_warmup(kind):
    values = factors(Schedule(kind, warmup=20, hold=0.75), steps=100)
    assert values[19:81] == [1.0] * 62  # from the end of warm-up up to 20 + 0.75 · 80
    assert values[81] < 1
    assert factors(Schedule(kind, hold=1.0)) == [1.0] * (STEPS + 1)


def test_halfway():
    assert Schedule("linear", final=0.2).factor(50, 100) == pytest.approx(0.6)
    assert Schedule("cosine", final=0.2).factor(50, 100) == pytest.approx(0.6)
    assert Schedule("linear").factor(25, 100) == pytest.approx(0.75)
    assert Schedule("cosine").factor(25, 100) == pytest.approx((1 + 0.5**0.5) / 2)


def test_a_polynomial_falls_with_its_power():
    """As Longformer's continued pretraining does: 500 updates up, then down with the third power."""
    schedule = Schedule("polynomial", warmup=500, power=3)
    left = [1.0, 0.9, 0.5, 0.1, 0.0]  # of 2,500 updates after the warm-up
    found = [schedule.factor(3_000 - round(2_500 * share), 3_000) for share in left]
    assert found == pytest.approx([1.0, 0.729, 0.125, 0.001, 0.0])
    assert schedule.factor(249, 3_000) == 0.5
    assert Schedule("polynomial", final=0.2, power=3, hold=0.5).factor(75, 100) == pytest.approx(0.3)
    assert factors(Schedule("polynomial", warmup=3, final=0.1)) == factors(Schedule("linear", warmup=3, final=0.1))


def test_a_run_may_end_while_it_warms_up():
    assert factors(Schedule("cosine", warmup=10), steps=3) == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(kind="step"), ["kind", "'step'", "cosine"]),
        (dict(warmup=-1), ["warmup", "-1"]),
        (dict(warmup=0.1), ["warmup", "0.1"]),
        (dict(kind="linear", final=1.5), ["final", "1.5"]),
        (dict(kind="linear", final=float("nan")), ["final", "nan"]),
        (dict(kind="cosine", hold=-0.5), ["hold", "-0.5"]),
        (dict(hold=0.5), ["hold 0.5", "constant"]),
        (dict(final=0.5), ["final 0.5", "constant"]),
        (dict(kind="polynomial", power=0), ["power", "above 0", "got 0"]),
        (dict(kind="polynomial", power=-1.0), ["power", "-1.0"]),
        (dict(kind="polynomial", power=float("inf")), ["power", "inf"]),
        (dict(kind="polynomial", power=float("nan")), ["power", "nan"]),
        (dict(kind="cosine", power=3), ["power 3", "cosine", "'polynomial'"]),
    ],
)
def test_refuses(keywords, words):
    with pytest.raises(ValueError) as e:
        Schedule(**keywords)
    assert all(word in str(e.value) for word in words), str(e.value)


@pytest.mark.parametrize("step", (-1, 11))
def test_refuses_steps_outside_the_run(step):
    with pytest.raises(ValueError, match=f"steps 10, got {step}"):
        Schedule().factor(step, 10)
