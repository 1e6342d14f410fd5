"""`supervisor run` behind PgBouncer in transaction mode, with fewer sessions than processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import psycopg
import pytest

from supervisor import AsyncQueue
from tests.postgres_pooler import Pooler, pooler
from tests.postgres_server import Databases, NoServerError
from tests.processes.test_on_a_server import kill_a_worker
from tests.site_under_test import Site, kill, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 3\n'


@pytest.fixture
def bouncer(
    postgres: Databases, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pooler]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    try:
        with pooler(postgres.fresh_database(), size=2) as one:
            yield one
    except NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def behind(bouncer: Pooler, make_site: Callable[..., Site]) -> Callable[..., Site]:
    """An installation that also knows the server itself, if `listening`."""

    def make(config: str = POOL, *, listening: bool = True) -> Site:
        known = f'listen_database = "{bouncer.direct}"\n' if listening else ""
        return make_site(known + config, url=bouncer.url)

    return make


@pytest.mark.parametrize("listening", [True, False])
def test_jobs_of_all_clients_run_and_end(behind: Callable[..., Site], bouncer: Pooler, listening: bool) -> None:
    site = behind(listening=listening)
    supervisor = site.start()
    ids = site.queue.enqueue_many("work", [{}] * 200)
    others: list[int] = []
    with psycopg.connect(bouncer.url, prepare_threshold=None) as program:
        others += [site.queue.enqueue("work", {"in": "a transaction"}, connection=program)]
        [(plain,)] = program.execute("INSERT INTO jobs (type, payload) VALUES ('work', '{}') RETURNING id")
        others += [plain]
    others += [int(site.command("enqueue", "work", "{}").stdout)]
    others += [int(line) for line in site.command("enqueue", "work", "{}", "--wait").stdout.split()[:1]]

    async def awaited() -> list[int]:
        async with AsyncQueue(bouncer.url) as queue:
            found = await asyncio.gather(*(queue.enqueue("work", {}) for _ in range(20)))
            async with await psycopg.AsyncConnection.connect(bouncer.url, prepare_threshold=None) as connection:
                found.append(await queue.enqueue("work", {}, connection=connection))
            return found

    others += asyncio.run(awaited())
    for job in (*ids, *others):
        site.done(job)
    assert "work" in site.command("status").stdout
    assert site.stop(supervisor) == 0
    site.verdict(others=others)
    assert site.rows("SELECT count(*) FROM job_supervisors") == [(0,)]
    assert bool(site.event("notifications_missing")) is not listening


def test_a_killed_workers_job_runs_again(behind: Callable[..., Site]) -> None:
    kill_a_worker(behind())


def test_a_killed_supervisors_jobs_run_again(behind: Callable[..., Site]) -> None:
    site = behind()
    job = site.queue.enqueue("work", {"seconds": 60})
    supervisor = site.start()
    site.running_pid(job)
    kill(supervisor.pid)
    site.start()
    wait_for(lambda: len(site.runs("start", job)) == 2, "the second run")
    assert site.queue.cancel(job)
    wait_for(lambda: site.job(job).status.finished, "its end")
    site.verdict(hit=[job], cancelled=[job])


def test_a_burst_ends_when_nothing_is_left(behind: Callable[..., Site]) -> None:
    site = behind(listening=False)
    site.queue.enqueue_many("work", [{} for _ in range(300)])
    supervisor = site.start("--burst", wait=False)
    assert supervisor.wait(60) == 0
    site.verdict()


@pytest.mark.parametrize(
    ("listening", "said"),
    [
        (False, "without a direct connection for notifications, a new job waits up to a second"),
        (True, "notifications come by the connection of listen_database"),
    ],
)
def test_doctor_says_what_stands_before_the_server(behind: Callable[..., Site], listening: bool, said: str) -> None:
    site = behind(listening=listening)
    findings = json.loads(site.command("doctor", "--json", code=None).stdout)["findings"]
    [found] = [finding for finding in findings if finding["about"] == "pooler"]
    assert said in found["fact"]
    assert "in transaction mode" in found["fact"]
    warnings = json.loads(site.command("check", "--json").stdout)["warnings"]
    assert [said in warning for warning in warnings] == ([] if listening else [True])


def test_a_direct_connection_has_no_pooler_to_speak_of(
    postgres: Databases, bouncer: Pooler, make_site: Callable[..., Site]
) -> None:
    site = make_site(POOL, url=bouncer.direct)
    findings = json.loads(site.command("doctor", "--json", code=None).stdout)["findings"]
    assert [finding for finding in findings if finding["about"] == "pooler"] == []
