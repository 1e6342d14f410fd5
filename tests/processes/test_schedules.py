"""Schedules with real processes: every time fires, and fires once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

from supervisor.engine import open_engine
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


def test_with_a_unique_key_runs_do_not_overlap(make_site: MakeSite) -> None:
    keyed = TICK.replace("{ seconds = 0 }", '{ seconds = 1.5 }\nunique_key = "tick"')
    site = make_site(keyed.replace("workers = 1", "workers = 2"))
    site.start()
    skipped = site.told("schedule_skipped", schedule="tick")
    assert skipped["unique_key"] == "tick"
    wait_for(lambda: site.count("done") >= 2, "the next run")
    runs = site.rows("SELECT started_at, completed_at FROM jobs WHERE status = 'done' ORDER BY id")
    assert runs[0][1] <= runs[1][0]


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


def test_a_paused_schedule_fires_nothing_until_it_is_resumed(make_site: MakeSite) -> None:
    site = make_site(TICK)
    site.start()
    wait_for(lambda: site.count("done") >= 1, "a tick")
    with contextlib.closing(open_engine(site.queue.url).operations()) as operations:
        schedules = operations.schedules
        assert schedules.pause("tick", time.time())
        [(next_at,)] = site.rows("SELECT next_at FROM job_schedules")
        fired = planned_times(site)
        by_hand = schedules.run("tick", time.time())
        assert by_hand is not None
        assert site.done(by_hand).status == "done"
        wait_for(lambda: time.time() > next_at + 2.5, "some missed times")
        assert planned_times(site)[:-1] == fired

        assert schedules.resume("tick")
    wait_for(lambda: len(planned_times(site)) >= len(fired) + 4, "the missed ticks")

    query = "SELECT scheduled_at FROM jobs WHERE type = 'work' AND id <> ? ORDER BY id"
    times = [at for (at,) in site.rows(query, by_hand)]
    assert times == [times[0] + n for n in range(len(times))]
