"""What an upgrade does to jobs: the supervisor is stopped and started anew while they run and come in."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.site_under_test import PATIENCE, Site, wait_for

POOLS = """
[defaults]
shutdown_grace = "3s"
[pools.work]
handler = "jobs:work"
workers = 3
[pools.long]
handler = "jobs:work"
workers = 1
[pools.quick]
handler = "jobs:work"
workers = 2
"""


def test_a_restart_finishes_what_runs_and_loses_nothing_of_what_comes_in(make_site: Callable[..., Site]) -> None:
    site = make_site(POOLS)
    old = site.start()
    running, gate = site.held("work", 3)
    long = site.queue.enqueue("long", {"until": str(site.folder / "later")})
    for job in (*running, long):
        site.running_pid(job)
    site.queue.enqueue_many("quick", [{}] * 200)

    old.send_signal(signal.SIGTERM)
    wait_for(lambda: site.event("stopping", pid_of=old), "the old one to drain")
    waiting = [site.queue.enqueue("work") for _ in range(3)]
    gate.touch()
    assert old.wait(PATIENCE) == 0
    assert [site.job(job).status for job in running] == ["done"] * 3
    assert [site.job(job).status for job in (*waiting, long)] == ["pending"] * 4  # one was given back
    assert site.survivors(old) == []

    (site.folder / "later").touch()
    site.start()

    site.verdict(hit=[long])
    assert (site.job(long).attempts, site.job(long).crashes) == (1, 0)
    assert [len(site.runs("start", job)) for job in running] == [1] * 3


def test_the_next_version_may_start_before_the_old_one_has_ended(make_site: Callable[..., Site]) -> None:
    """As with a supervisor that a container's runtime stops after it has started another."""
    site = make_site(POOLS)
    old = site.start()
    running, gate = site.held("work", 3)
    for job in running:
        site.running_pid(job)

    new = site.start()
    old.send_signal(signal.SIGTERM)
    wait_for(lambda: site.event("stopping", pid_of=old), "the old one to drain")
    later = [site.queue.enqueue("work") for _ in range(10)]
    for job in later:
        site.done(job)
    gate.touch()
    assert old.wait(PATIENCE) == 0

    site.verdict()
    assert [len(site.runs("start", job)) for job in running] == [1] * 3
    assert new.poll() is None
