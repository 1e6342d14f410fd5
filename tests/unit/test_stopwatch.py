"""What the machine keeps us waiting does not count for a promise of a second."""

from __future__ import annotations

import pytest

from tests import stopwatch
from tests.site_under_test import wait_for
from tests.stopwatch import Stopwatch


@pytest.mark.parametrize(
    ("cpu", "io", "counts"),
    [(0.0, 0.0, 2.0), (0.5, 0.0, 1.5), (0.5, 1.25, 0.75), (2.0, 0.0, 0.2), (9.0, 9.0, 0.2)],
)
def test_time_that_others_took_does_not_count(
    monkeypatch: pytest.MonkeyPatch, cpu: float, io: float, counts: float
) -> None:
    monkeypatch.setattr(stopwatch, "waited", lambda resource: 100.0)
    watch = Stopwatch()
    monkeypatch.setattr(stopwatch, "waited", {"cpu": 100.0 + cpu, "io": 100.0 + io}.__getitem__)
    assert watch.seconds(2.0) == pytest.approx(counts)


def test_all_counts_where_the_kernel_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stopwatch.waited("nothing of that name") == 0.0
    monkeypatch.setattr(stopwatch, "waited", lambda resource: 0.0)
    assert Stopwatch().seconds(1.5) == 1.5


def test_a_short_patience_ends() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the end"):
        wait_for(lambda: False, "the end", patience=0.05)
