"""Other programs work on the table beside ours, meddle with our rows, die and come back late."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, Site, kill, wait_for

SHORT = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\nlock_time = "1s"\n'
POLLER = """
import os, sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    row = db.execute("UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending'"
                     " AND type = 'work' LIMIT 1) RETURNING id").fetchone()
    if row is None:
        time.sleep(0.002)
        continue
    print(row[0], flush=True)
    if sys.argv[2] == "hang":
        time.sleep(300)
    time.sleep(0.005)
    db.execute("UPDATE jobs SET status = 'done' WHERE id = ?", row)
"""


def poller(site: Site, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", POLLER, site.database, how], stdout=subprocess.PIPE, text=True)


def claimed_by_a_hung_poller(site: Site, lock_time: str, job: int) -> float:
    """Another program claims it and is killed; returns until when that claim holds."""
    site.rows("UPDATE job_meta SET value = ? WHERE key = 'foreign_lock_time'", lock_time)
    with poller(site, "hang") as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == job
        [(expires_at,)] = site.rows("SELECT lock_expires_at FROM jobs WHERE id = ?", job)
        kill(other.pid)
    return float(expires_at)


@pytest.mark.sqlite
@pytest.mark.fault(42)
def test_a_foreign_poller_and_ours_share_the_jobs_and_none_runs_twice(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    other = poller(site, "settle")
    site.start()
    jobs = [row[0] for _ in range(300) for row in site.rows("INSERT INTO jobs(type) VALUES ('work') RETURNING id")]
    site.verdict(others=jobs)
    kill(other.pid)
    theirs = {int(job) for job in other.communicate()[0].split()}
    ours = {job for job in jobs if site.runs("start", job)}
    assert theirs
    assert ours
    assert theirs | ours == set(jobs)
    assert not theirs & ours


@pytest.mark.sqlite
@pytest.mark.fault(42)
def test_a_foreign_claim_is_respected_until_it_expires_and_its_late_settle_does_not_count(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    over = site.folder / "over"
    job = site.queue.enqueue("work", {"until": str(over)})
    expires_at = claimed_by_a_hung_poller(site, "2", job)
    site.start()
    site.running_pid(job)
    assert site.runs("start", job)[0][2] >= expires_at

    # It comes back while ours is at it, and again after ours has settled.
    assert settle(site, job, "done") == 0
    over.touch()
    site.done(job)
    assert settle(site, job, "failed") == 0
    site.verdict(hit=[job])
    assert site.job(job).crashes == 1


@pytest.mark.sqlite
@pytest.mark.fault(42)
def test_a_late_foreign_settle_before_ours_has_claimed_is_the_one_that_counts(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    site.rows("INSERT INTO job_controls VALUES ('paused', 'work', 1, 0)")
    [(job,)] = site.rows("INSERT INTO jobs(type) VALUES ('work') RETURNING id")
    claimed_by_a_hung_poller(site, "0.1", job)
    site.start()
    wait_for(lambda: site.job(job).status is Status.PENDING, "its claim to expire")
    assert settle(site, job, "done") == 1
    site.rows("DELETE FROM job_controls")
    site.queue.enqueue("work")
    site.verdict(others=[job], hit=[job])
    assert site.runs("start", job) == []


def settle(site: Site, job: int, status: str) -> int:
    return len(site.rows(f"UPDATE jobs SET status = '{status}' WHERE id = ? RETURNING id", job))


@pytest.mark.fault(34)
def test_a_result_for_a_row_that_was_deleted_is_refused_and_logged(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    site.start()
    over = site.folder / "over"
    job, other = site.queue.enqueue("work", {"until": str(over)}), site.queue.enqueue("work", {"until": str(over)})
    site.running_pid(job), site.running_pid(other)
    site.rows("DELETE FROM jobs WHERE id = ?", job)
    over.touch()
    wait_for(lambda: site.event("claim_lost", job=job), "the refusal")
    site.verdict(gone=[job])
    assert not site.event("claim_lost", job=other)


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    "change",
    [
        "locked_by = NULL",
        "locked_by = NULL, locked_at = NULL, lock_expires_at = NULL",
        "claim_token = claim_token + 1",
        "status = 'pending', locked_by = NULL, claim_token = claim_token + 1",
    ],
)
def test_a_result_for_a_claim_that_was_cleared_by_hand_is_refused_and_the_job_runs_again(
    make_site: MakeSite, change: str
) -> None:
    site = make_site(SHORT)
    site.start()
    over = site.folder / "over"
    job = site.queue.enqueue("work", {"until": str(over)})
    first = site.running_pid(job)
    site.rows(f"UPDATE jobs SET {change} WHERE id = ?", job)
    over.touch()
    wait_for(lambda: site.event("claim_lost", job=job), "the refusal")
    site.verdict(hit=[job])
    ends = {token > 1: pid for token, pid, _ in site.runs("end", job)}
    assert sorted(ends) == [False, True]  # the recorded result is the later run's
    assert ends[False] == first
    assert len(site.runs("end", job)) == 2


@pytest.mark.fault(34)
def test_an_applications_reset_of_running_rows_changes_none_of_ours(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    site.start()
    over = site.folder / "over"
    jobs = site.queue.enqueue_many("work", [{"until": str(over)}] * 2)
    for job in jobs:
        site.running_pid(job)
    for reset in (
        "UPDATE jobs SET status='pending' WHERE status='running' RETURNING id",
        "UPDATE jobs SET status='pending', locked_by=NULL WHERE status='running' RETURNING id",
    ):
        assert site.rows(reset) == []
    unmoved = "SELECT id, claim_token FROM jobs WHERE status = 'running' ORDER BY id"
    assert site.rows(unmoved) == [(job, 1) for job in jobs]
    over.touch()
    site.verdict()
    assert not site.event("claim_lost")


@pytest.mark.fault(32)
def test_a_type_that_no_pool_takes_stays_pending_and_is_told_once(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    site.rows("DELETE FROM jobs")  # the one that made the tables is of a type of its own
    supervisor = site.start()
    waiting = [site.queue.enqueue("nobody")]
    wait_for(lambda: _warnings(site), "the warning")
    waiting.append(site.queue.enqueue("nobody"))
    kill(site.maintainer(supervisor))  # the next one finds it anew
    wait_for(lambda: site.event("maintainer_died"), "the maintainer's end")
    waiting.append(site.queue.enqueue("neither"))
    wait_for(lambda: len(_warnings(site)) == 2, "the other type's own warning")
    site.queue.enqueue("work")
    assert site.command("status").stdout.count("no pool takes the type nobody: ") == 1
    as_json = json.loads(site.command("status", "--json").stdout)
    assert sorted(as_json["unhandled"]) == ["neither", "nobody"]
    site.verdict(pending=waiting)
    time.sleep(0.5)  # long enough for the maintainer's looks at what it does not know
    assert _warnings(site) == [["nobody"], ["neither"]]


def _warnings(site: Site) -> list[list[str]]:
    return [event["types"] for event in site.events() if event.get("event") == "types_unhandled"]
