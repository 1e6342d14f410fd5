"""`supervisor run` with a PostgreSQL server: jobs run, and whatever dies or restarts, each ends once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from supervisor import AsyncQueue, Status
from supervisor.store.postgres import changes, producer
from tests.postgres_server import Databases, Server
from tests.site_under_test import Site, kill, wait_for
from tests.web.client import ADMIN, admin_of

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n'


@pytest.fixture
def on_a_server(
    postgres: Databases,  # before the site, so that it is there until that has ended
    make_site: Callable[..., Site],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    return lambda config=POOL: make_site(config, url=postgres.fresh_database())


def test_jobs_of_any_program_run_and_end(on_a_server: Callable[..., Site]) -> None:
    site = on_a_server()
    site.queue.enqueue_many("work", [{} for _ in range(50)])
    supervisor = site.start()
    with psycopg.connect(site.url) as program:
        [(job,)] = program.execute("INSERT INTO jobs (type, payload) VALUES ('work', '{}') RETURNING id")
    assert site.done(job).result["pid"] in [worker.pid for worker in site.workers()]
    assert "work" in site.command("status").stdout
    assert site.command("jobs", "list").stdout
    assert site.command("backup", str(site.folder / "copy"), code=3).stderr.count("\n") == 1
    assert site.stop(supervisor) == 0
    site.verdict(others=[job])
    assert site.rows("SELECT count(*) FROM job_supervisors") == [(0,)]
    assert site.rows("SELECT count(*) FROM job_workers") == [(0,)]


def test_what_somebody_deletes_pauses_and_cancels(on_a_server: Callable[..., Site]) -> None:
    """A crash of the server undoes the registration of workers, as does who empties the table."""
    site = on_a_server()
    site.start()
    with psycopg.connect(site.url) as somebody:
        somebody.execute("DELETE FROM job_workers")
    for job in site.queue.enqueue_many("work", [{} for _ in range(20)]):
        site.done(job)
    running = site.queue.enqueue("work", {"seconds": 60})
    site.running_pid(running)
    site.command("pause", "work")
    waiting = site.queue.enqueue("work")
    site.command("jobs", "cancel", str(running))
    wait_for(lambda: site.job(running).status.finished, "the cancelled one's end")
    assert not site.runs("start", waiting)
    site.command("resume", "work")
    site.verdict(cancelled=[running], hit=[running])


def test_an_idle_host_asks_the_server_for_little(
    own_postgres: Callable[..., Server], make_site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its own server counts: at most 3 transactions a second, and 10 workers are no more than 2."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    site = make_site(POOL.replace("2", "10"), url=own_postgres().fresh_database())
    site.start()
    with psycopg.connect(site.url, autocommit=True) as watch:

        def transactions_a_second() -> float:
            looks = []
            for pause in (15.0, 0.0):
                watch.execute("SELECT pg_stat_clear_snapshot()")
                looks += watch.execute(
                    "SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())::float"
                    " FROM pg_stat_database WHERE datname = current_database()"
                ).fetchall()
                time.sleep(pause)
            (before, began), (after, ended) = looks
            return float(after - before) / (ended - began)

        site.done(site.queue.enqueue("work"))
        wait_for(lambda: transactions_a_second() <= 3.0, "a quiet host", 120.0)
    site.verdict()


def test_a_killed_workers_job_runs_again_at_once(on_a_server: Callable[..., Site]) -> None:
    kill_a_worker(on_a_server())


def kill_a_worker(site: Site) -> None:
    """Its job runs again, charged once."""
    job = site.queue.enqueue("work", {"seconds": 60})
    site.start()
    kill(site.running_pid(job))
    wait_for(lambda: len(site.runs("start", job)) == 2, "the second run")
    assert site.job(job).crashes == 1
    assert site.queue.cancel(job)
    wait_for(lambda: site.job(job).status.finished, "its end")
    site.verdict(hit=[job], cancelled=[job])


@pytest.mark.fault(89)
@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_loses_nothing_and_work_goes_on(
    own_postgres: Callable[..., Server],
    make_site: Callable[..., Site],
    mode: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    server = own_postgres(fsync="on")
    site = make_site(POOL, url=server.fresh_database())
    jobs = [site.queue.enqueue("work", {"seconds": 0.02}) for _ in range(100)]
    site.start()
    wait_for(lambda: site.count("done") > 5, "some to be done")
    server.restart(mode)
    wait_for(lambda: site.count("done") == len(jobs), "all to be done", 60.0)
    later = site.queue.enqueue("work")
    site.done(later)
    site.verdict(hit=jobs)


NONE_KEPT = POOL + '[retention]\ndone = "0s"\n'


def test_jobs_that_have_succeeded_are_deleted_if_none_are_kept_and_who_waits_gets_the_result(
    on_a_server: Callable[..., Site],
) -> None:
    site = on_a_server(NONE_KEPT + ADMIN)
    jobs = site.queue.enqueue_many("work", [{} for _ in range(50)])
    supervisor = site.start()
    wait_for(lambda: site.rows("SELECT count(*) FROM jobs WHERE type = 'work'") == [(0,)], "an empty table")
    assert all(site.runs("end", job) for job in jobs)
    awaited = site.queue.enqueue("work", {"seconds": 1})
    assert site.queue.wait(awaited, timeout=20).status is Status.DONE
    admin = admin_of(site, supervisor)
    answer = httpx.post(f"{admin.listen}/run/work", json={}, headers=admin.bearer, timeout=60)
    assert (answer.status_code, answer.json()["result"]["pid"] > 0) == (200, True)
    assert site.stop(supervisor) == 0
    assert site.rows("SELECT sum(done)::int FROM job_history WHERE type = 'work'") == [(52,)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_run_after_a_rest_returns_its_result_although_no_job_is_kept(
    on_a_server: Callable[..., Site], asynchronous: bool
) -> None:
    site = on_a_server(NONE_KEPT)
    site.start()
    site.queue.job(site.queue.enqueue("work", delay=1000))  # the reader has its connection

    def run() -> Any:
        return asyncio.run(AsyncQueue.of(site.queue).run("work")) if asynchronous else site.queue.run("work")

    with ThreadPoolExecutor() as threads:
        # Nobody looks at the job before it has succeeded.
        with site.queue._connections.reader.guard:
            waiting = threads.submit(run)
            wait_for(lambda: site.ledger.exists() and "end " in site.ledger.read_text(), "the run to end")
            wait_for(lambda: site.rows("SELECT 1 FROM jobs WHERE status = 'running'") == [], "its success")
        assert waiting.result(20)["pid"]


def test_whoever_waits_for_longer_than_one_announcement_lasts_gets_the_result(
    on_a_server: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (changes, producer):
        monkeypatch.setattr(module, "SLEEP", 3)
        monkeypatch.setattr(module, "RENEWAL", 2.0)
    site = on_a_server(NONE_KEPT)
    site.start()
    assert site.queue.run("work", {"seconds": 6}, timeout=60)["pid"]
