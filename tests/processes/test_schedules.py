"""Schedules with real processes: every time fires, and fires once."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]

TICK = """
[pools.work]
handler = "jobs:work"
workers = 1
[[schedules]]
name = "tick"
type = "work"
every = "1s"
payload = { seconds = 0 }
misfire = "all"
"""


POOL = TICK[: TICK.index("[[")]


def planned_times(site: Site) -> list[float]:
    return [row[0] for row in site.rows("SELECT scheduled_at FROM jobs WHERE type = 'work' ORDER BY id")]


def test_a_schedule_fires_at_its_times_and_its_jobs_run(make_site: MakeSite) -> None:
    site = make_site(TICK)
    site.start()
    wait_for(lambda: site.count("done") >= 2, "two ticks")
    times = planned_times(site)
    assert times[1] - times[0] == 1.0
    started = site.rows("SELECT started_at - scheduled_at FROM jobs WHERE status = 'done'")
    assert min(late for (late,) in started) < 0.5
    assert site.told("schedule_fired", schedule="tick")


def kill_maintainers(site: Site) -> None:
    for supervisor in site.supervisors:
        for child in psutil.Process(supervisor.pid).children():
            if not child.children():  # a template has workers
                kill(child.pid)


def test_of_two_supervisors_with_killed_maintainers_each_time_fires_once(make_site: MakeSite) -> None:
    site = make_site(TICK)
    site.start()
    site.start()
    begun = time.monotonic()
    while time.monotonic() < begun + 4:
        kill_maintainers(site)
        time.sleep(0.7)
    wait_for(lambda: site.count("done") >= 4, "four ticks")
    times = planned_times(site)
    assert times == [times[0] + n for n in range(len(times))]


@pytest.mark.each_engine
def test_one_made_at_run_time_fires_each_time_once_though_it_is_changed_and_maintainers_are_killed(
    make_site: MakeSite,
) -> None:
    site = make_site(POOL)
    site.start()
    site.start()
    tick = {"type": "work", "every": "1s", "misfire": "all"}
    begun = time.monotonic()
    for change in range(100):
        assert site.queue.schedules.set("tick", **tick, payload={"seconds": 0, "change": change})
        kill_maintainers(site)
        time.sleep(0.7)
        if time.monotonic() > begun + 4:
            break
    wait_for(lambda: site.count("done") >= 4, "four ticks")
    assert len({row[0] for row in site.rows("SELECT payload FROM jobs")}) > 1
    site.queue.schedules.remove("tick")
    times = planned_times(site)  # a tick that comes after this would be one of a schedule that was removed
    assert times == [times[0] + n for n in range(len(times))]

    set_at = time.time()
    site.queue.schedules.set("tock", **tick, payload={"seconds": 0}, expect_within="1h")
    wait_for(lambda: site.count("done") >= len(times) + 2, "two more")
    later = planned_times(site)[len(times) :]
    assert 1 <= later[0] - set_at < 2
    assert later == [later[0] + n for n in range(len(later))]
    wait_for(lambda: (site.queue.schedules.list()[0].expected_from or 0) > later[0], "its success to be known")

    site.queue.schedules.remove("tock")
    site.queue.schedules.set("tack", **tick, payload={"seconds": 0, "tack": True})
    tacks = "SELECT created_at - scheduled_at FROM jobs WHERE payload LIKE '%tack%' ORDER BY id"
    wait_for(lambda: site.rows(tacks), "one more")
    assert site.rows(tacks)[0][0] < 1  # idle supervisors have heard of it
