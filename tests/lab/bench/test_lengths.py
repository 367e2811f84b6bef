"""Times over lengths: one for each length, drawn where they belong."""

import pytest

from longshort.lab.bench import lengths
from longshort.lab.bench.lengths import Timed, draw_lengths, time_over_lengths

SMALL = {"width": 8, "heads": 2, "window": 4, "rank": 2, "repeats": 1}


def test_every_length_is_timed_in_order():
    results = list(time_over_lengths((7, 16), **SMALL))
    assert [r.tokens for r in results] == [7, 16]
    assert all(r.ours_ms > 0 and r.ratio == r.theirs_ms / r.ours_ms for r in results)


def test_a_length_is_timed_only_when_asked_for(monkeypatch):
    timed = []
    monkeypatch.setattr(lengths, "milliseconds", lambda *steps, repeats: timed.append(repeats) or [1.0, 2.0])
    over = time_over_lengths((8, 16), **SMALL)
    assert next(over) == Timed(8, 1.0, 2.0) and len(timed) == 1


def test_long_sequences_are_repeated_less(monkeypatch):
    monkeypatch.setattr(lengths, "milliseconds", lambda *steps, repeats: [repeats, 1.0])
    results = time_over_lengths((512, 2048, 8192), **{**SMALL, "repeats": 5})
    assert [r.ours_ms for r in results] == [5, 4, 3]


def test_figure_has_both_lines_and_the_ratios(tmp_path, figures):
    path = tmp_path / "lengths.png"
    draw_lengths([Timed(512, 2.0, 3.0), Timed(1024, 4.0, 12.0)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "full attention": [[512, 3.0], [1024, 12.0]],
        "long-short attention": [[512, 2.0], [1024, 4.0]],
    }
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    places = {text.get_text(): text.xy for text in axes.texts if text.get_text()}
    assert places == {"1.5×": (512, 3.0), "3.0×": (1024, 12.0)}


def test_ratio_stands_above_the_slower_of_the_two(tmp_path, figures):
    draw_lengths([Timed(512, 8.0, 4.0)], tmp_path / "lengths.png")
    (ratio,) = [text for text in figures[0].axes[0].texts if text.get_text()]
    assert (ratio.get_text(), ratio.xy[1]) == ("0.5×", pytest.approx(8.0))
