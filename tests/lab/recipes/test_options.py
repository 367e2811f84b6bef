"""What a user changes reaches every run of a chain, and nothing else changes."""

from dataclasses import replace

from longshort.lab.recipes.charlm import enwik8_small
from longshort.lab.recipes.options import adjusted


def test_nothing_given_changes_nothing():
    assert adjusted(enwik8_small(), seed=None, steps=None) == enwik8_small()


def test_a_change_reaches_the_whole_chain():
    run = adjusted(enwik8_small(), accumulate=4, compile=False)
    assert [(each.accumulate, each.compile) for each in run.chain] == [(4, False)] * 3
    back = [replace(each, accumulate=1, compile=True, starts_from=None) for each in run.chain]
    assert back == [replace(each, starts_from=None) for each in enwik8_small().chain]


def test_the_warm_up_goes_with_the_steps():
    run = adjusted(enwik8_small(), steps=430)
    assert [each.steps for each in run.chain] == [430] * 3
    assert [each.schedule.warmup for each in run.chain] == [10, 43, 43]
