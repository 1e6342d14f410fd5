"""A job that is due later starts on time, also if no worker was idle when it became known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from supervisor.maintenance.waking import Waker
from supervisor.store.base import Depth, JobSelector


class Backlog:
    asked = 0

    def any_due(self, wanted: JobSelector, now: float) -> bool | None:
        return None

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        self.asked += 1
        return Depth(next_due=5.0)


def test_a_worker_that_becomes_idle_after_the_last_change_is_woken_for_what_is_due_later() -> None:
    """It has looked for what was due, and slept: nothing is committed any more."""
    idle: dict[str, int] = {}
    watch = SimpleNamespace(version=1, woke=lambda **_: None)
    pools = {"work": SimpleNamespace(wanted=JobSelector(("work",)), wake=-1)}
    backlog = Backlog()
    board = SimpleNamespace(idle=lambda: dict(idle))
    waker = Waker(cast("Any", backlog), cast("Any", board), cast("Any", pools), cast("Any", watch))

    waker.run(1.0)
    looks = [waker.next_at(1.0)]
    for _ in range(10):  # it runs on, for long: nothing is asked of the database, and less and less often
        waker.run(looks[-1] or 0.0)
        looks.append(waker.next_at(looks[-1] or 0.0))
    pauses = [
        later - at for at, later in zip([1.0, *cast("list[float]", looks)], cast("list[float]", looks), strict=False)
    ]
    assert pauses[0] < 0.05
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
    assert backlog.asked == 0

    watch.version = 2  # it has settled
    waker.run(4.0)
    assert (waker.next_at(4.0) or 0.0) < 4.05
    idle["work"] = 1
    waker.run(4.04)
    assert waker.next_at(4.04) == 5.0
