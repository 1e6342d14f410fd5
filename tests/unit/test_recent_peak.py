"""The size of a pool's workers: the largest of those seen lately."""

from __future__ import annotations

from supervisor.supervision.sizes import PERIOD, RecentPeak


def test_a_larger_value_counts_at_once() -> None:
    assert RecentPeak().seen([500], 0.0).seen([700, 600], 1.0).seen([300], 2.0).value == 700


def test_a_value_counts_for_a_period_at_least_and_is_then_forgotten() -> None:
    peak = RecentPeak().seen([700], 0.0)
    for tenth in range(1, 20):
        peak = peak.seen([300], tenth * PERIOD / 10)
        assert peak.value == 700
    assert peak.seen([300], 2 * PERIOD).value == 300


def test_while_nothing_is_seen_nothing_is_forgotten() -> None:
    peak = RecentPeak().seen([700], 0.0)

    assert peak.seen([300], 50 * PERIOD).value == 700
    assert peak.seen([300], 50 * PERIOD).seen([300], 99 * PERIOD).value == 300
