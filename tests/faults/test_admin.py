"""The admin process in the faults of others, and in its own: no job and no worker minds."""

from __future__ import annotations

import http.client
import json
import threading

import pytest

from tests.site_under_test import MakeSite, kill, wait_for
from tests.stopwatch import Stopwatch
from tests.web.client import ADMIN, WORK, Admin, admin_of


@pytest.mark.fault(7)
def test_the_admin_process_ends_with_a_killed_supervisor_and_serves_with_the_next(make_site: MakeSite) -> None:
    site = make_site(WORK + ADMIN)
    killed = site.start()
    admin_of(site, killed)
    job = site.queue.enqueue("work", {"seconds": 1})
    site.running_pid(job)
    kill(killed.pid)
    killed.wait()
    wait_for(lambda: not site.survivors(killed), "every process to end")
    assert admin_of(site, site.start()).get("/api/admin/pools") == 200
    site.verdict(hit=[job])


@pytest.mark.sqlite
@pytest.mark.fault(24)
def test_a_stopped_admin_process_that_holds_the_writers_lock_is_replaced_at_once(make_site: MakeSite) -> None:
    site = make_site(WORK + ADMIN)
    point = "admin:insert_job=stop"  # in the middle of its transaction
    supervisor = site.start(env=site.failpoints(point))
    admin = admin_of(site, supervisor)
    asking = threading.Thread(target=enqueue, args=(admin,))
    asking.start()
    assert site.hit(point) == admin.pid
    watch = Stopwatch()
    for job in [site.queue.enqueue("work") for _ in range(3)]:
        site.done(job)
    assert watch.seconds() < 10  # without the lock it would be found by its beat, after 15 s
    asking.join(20)
    assert site.told("admin_stopped", pid=admin.pid)
    assert admin_of(site, supervisor, other_than=admin.pid).get("/api/admin/pools") == 200
    assert site.count("pending") == 1  # the one that never comes: nothing of the transaction was left
    site.verdict()


def enqueue(admin: Admin) -> None:
    """Its answer never comes: the connection ends with the process."""
    connection = http.client.HTTPConnection(*admin.address, timeout=20)
    body = json.dumps({"type": "other", "payload": {}})
    connection.request("POST", "/api/admin/jobs", body, admin.bearer | {"Content-Type": "application/json"})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()


@pytest.mark.fault(8)
@pytest.mark.parametrize("place", ["supervisor:fork_admin.before", "supervisor:fork_admin"])
def test_a_supervisor_killed_while_it_forks_the_admin_process_leaves_nothing(make_site: MakeSite, place: str) -> None:
    site = make_site(WORK + ADMIN)
    point = f"{place}=kill"
    supervisor = site.start(wait=False, env=site.failpoints(point))
    assert site.hit(point) == supervisor.pid
    supervisor.wait()
    wait_for(lambda: not site.survivors(supervisor), "every process to end")
    job = site.queue.enqueue("work")
    site.start()
    site.done(job)
    site.verdict()
