"""Schedules with real processes: every time fires, and fires once."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

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


def test_of_two_supervisors_with_killed_maintainers_each_time_fires_once(make_site: MakeSite) -> None:
    site = make_site(TICK)
    site.start()
    site.start()
    begun = time.monotonic()
    while time.monotonic() < begun + 4:
        for supervisor in site.supervisors:
            for child in psutil.Process(supervisor.pid).children():
                if not child.children():  # a template has workers
                    kill(child.pid)
        time.sleep(0.7)
    wait_for(lambda: site.count("done") >= 4, "four ticks")
    times = planned_times(site)
    assert times == [times[0] + n for n in range(len(times))]
