"""Connections to a PostgreSQL server that are cut, swallowed, ended, refused or held up: each job ends once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from supervisor import Queue
from supervisor.domain.errors import EnqueueUncertain, StoreError, StoreUnavailable
from tests.postgres_proxy import Proxy
from tests.postgres_server import Databases, Server
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.postgres

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n'
PREFETCH = POOL + "prefetch = 4\n"
RECOVERY = 5.0  # seconds within which everything works again
WRITES = "^(commit|select lost)"  # of an enqueue or a duty, and of a worker's exchange


@pytest.fixture
def proxies() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as ended:
        yield ended


@pytest.fixture
def proxied(
    proxies: contextlib.ExitStack,  # before the site, which ends first
    make_site: MakeSite,
    postgres: Databases,
) -> Callable[..., tuple[Site, Proxy]]:
    """A site whose processes, and whose queue, reach the server by a proxy; the test itself does not."""

    def make(config: str = POOL) -> tuple[Site, Proxy]:
        direct = postgres.fresh_database()
        proxy = proxies.enter_context(Proxy(direct))
        site = make_site(config, url=proxy.url(direct))
        site.where = direct
        return site, proxy

    return make


def patience(seconds: float) -> float:
    """On a machine that may be busy with other tests."""
    return 4 * seconds


def all_done(site: Site, seconds: float = 60.0) -> None:
    jobs = site.queue.acknowledged
    wait_for(lambda: site.count("done") >= len(jobs), "all to be done", seconds)


# Answers that are lost


@pytest.mark.fault(86)
@pytest.mark.parametrize("answered", [True, False])
def test_whatever_answers_of_commits_are_lost_each_job_runs_once(
    proxied: Callable[..., tuple[Site, Proxy]], answered: bool
) -> None:
    site, proxy = proxied(PREFETCH)
    site.start()
    dice = random.Random(7)
    hits = -1
    uncertain = 0
    for _ in range(60):
        if proxy.hits() != hits:
            hits = proxy.hits()
            proxy.cut_at(WRITES, answered=answered, nth=dice.randint(1, 5))
        try:
            site.queue.enqueue("work")
        except EnqueueUncertain:
            raise
        except StoreError:
            uncertain += 1  # told as lost: it is
    assert hits > 5
    proxy.cut_at("nothing at all", answered=True)
    all_done(site)
    site.verdict()
    assert uncertain == 0 if answered else uncertain > 0
    assert not site.event("worker_died")


@pytest.mark.fault(86)
def test_an_operators_command_whose_answer_is_lost_says_so_and_can_be_given_again(
    proxied: Callable[..., tuple[Site, Proxy]],
) -> None:
    site, proxy = proxied()
    job = site.queue.enqueue("work")
    for words in (["pause", "work"], ["jobs", "cancel", str(job)], ["jobs", "retry", str(job)], ["resume", "work"]):
        proxy.cut_at("^commit", answered=True)
        first = site.command(*words, code=None)
        assert first.returncode == 0 or first.stderr.count("\n") == 1, first.stderr
        proxy.cut_at("nothing at all", answered=True)
        again = site.command(*words, code=None)
        assert "Traceback" not in again.stderr
    site.start()
    site.done(job)
    site.rows("DELETE FROM test_outcomes WHERE status = 'cancelled'")  # which the retry has taken back
    site.verdict()


@pytest.mark.fault(87)
def test_a_claim_that_the_server_carries_out_after_its_workers_death_holds_no_job(make_site: MakeSite) -> None:
    """It waits for a lock while the worker is killed; its jobs run long before the claim would expire."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\n')
    site.command("pause", "work")
    job = site.queue.enqueue("work")
    site.start()
    worker = wait_for(lambda: site.workers(), "a worker")[0]
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%settle_and_claim%'"
    )
    with psycopg.connect(site.url) as stranger:
        stranger.execute("LOCK TABLE jobs IN EXCLUSIVE MODE")
        site.command("resume", "work")
        wait_for(lambda: site.rows(waiting), "its claim to wait")
        kill(worker.pid)
        gone = f"SELECT 1 FROM job_workers WHERE incarnation = '{worker.incarnation}'"
        wait_for(lambda: not site.rows(gone), "its death to be settled")
    wait_for(lambda: site.job(job).status == "done", "the job", patience(RECOVERY))
    assert [token for token, _, _ in site.runs("start", job)] == [1]
    site.verdict()


# Networks and servers that are away


@pytest.mark.fault(88)
@pytest.mark.parametrize("seconds", [3.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_a_black_hole_costs_no_job_a_run(proxied: Callable[..., tuple[Site, Proxy]], seconds: float) -> None:
    site, proxy = proxied(PREFETCH + 'lock_time = "2s"\n')
    site.queue.enqueue_many("work", [{"seconds": 0.02}] * 100)
    site.start()
    wait_for(lambda: site.count("done") > 10, "some to be done")
    proxy.black_hole()
    time.sleep(seconds)
    proxy.heal()
    all_done(site)
    later = site.queue.enqueue("work")
    wait_for(lambda: site.job(later).status == "done", "work to go on", patience(RECOVERY))
    site.verdict()


@pytest.mark.fault(89)
@pytest.mark.parametrize(("times", "pause"), [(4, 0.4), pytest.param(20, 1.0, marks=pytest.mark.long)])
def test_sessions_that_are_ended_again_and_again_under_load_cost_no_job_a_run(
    make_site: MakeSite, postgres: Databases, times: int, pause: float
) -> None:
    site = make_site(PREFETCH)
    site.start()
    for _ in range(times):
        for _ in range(30):
            with contextlib.suppress(StoreUnavailable):
                site.queue.enqueue("work", {"seconds": 0.01})
        postgres.kill_backends(site.url)
        time.sleep(pause)
    watch = Stopwatch()
    later = [site.queue.enqueue("work") for _ in range(20)]
    wait_for(lambda: all(site.job(job).status == "done" for job in later), "work to go on", patience(RECOVERY))
    assert watch.seconds() < patience(RECOVERY)
    all_done(site)
    assert not site.event("worker_died")
    with psycopg.connect(site.url) as program:
        unknown = program.execute("SELECT id FROM jobs WHERE type = 'work'").fetchall()
    site.verdict(others=[job for (job,) in unknown])


@pytest.mark.fault(90)
def test_without_a_free_connection_workers_wait_and_nobody_is_charged(
    own_postgres: Callable[..., Server], make_site: MakeSite
) -> None:
    server = own_postgres(max_connections=14, superuser_reserved_connections=0)
    site = make_site(POOL, url=server.fresh_database())
    site.start()
    hit = site.queue.enqueue("work", {"seconds": 60})
    worker = site.running_pid(hit)
    taken: list[psycopg.Connection] = []
    try:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(site.url, connect_timeout=10))
        filling = threading.Event()
        filler = threading.Thread(target=_keep_full, args=(site.url, taken, filling))
        filler.start()  # faster than the successor, which is to find none
        try:
            kill(worker)
            wait_for(lambda: site.event("store_failed"), "its successor to be refused")
        finally:
            filling.set()
            filler.join()
        with Queue(site.url) as another, pytest.raises(StoreUnavailable, match="max_connections"):
            another.enqueue("work")
    finally:
        for one in taken:
            one.close()
    site.queue.cancel(hit)
    wait_for(lambda: site.job(hit).status == "cancelled", "the successor, or another", patience(RECOVERY))
    later = site.queue.enqueue("work")
    site.done(later)
    assert site.job(hit).crashes == 1
    site.verdict(hit=[hit], cancelled=[hit])


def _keep_full(url: str, taken: list[psycopg.Connection], stop: threading.Event) -> None:
    """Take what becomes free."""
    while not stop.wait(0.001):
        with contextlib.suppress(psycopg.OperationalError):
            taken.append(psycopg.connect(url, connect_timeout=10))


@pytest.mark.fault(91)
def test_a_strangers_frozen_transaction_holds_up_its_own_rows_and_no_others(make_site: MakeSite) -> None:
    site = make_site(PREFETCH.replace("= 2", "= 3", 1) + 'lock_time = "1s"\n')
    waiting = site.queue.enqueue_many("work", [{}] * 2)
    gate = site.folder / "gate"
    site.command("pause", "work")
    site.start()
    site.start()  # another one, which would take expired locks
    with psycopg.connect(site.url) as frozen:
        frozen.execute("SELECT id FROM jobs WHERE id = ANY (%s) FOR UPDATE", [waiting])
        site.command("resume", "work")
        running = [site.queue.enqueue("work", {"until": str(gate)}) for _ in range(2)]
        for job in running:
            site.running_pid(job)
        frozen.execute("SELECT id FROM jobs WHERE id = %s FOR UPDATE", [running[0]])
        others = site.queue.enqueue_many("work", [{}] * 20)
        for job in others:
            site.done(job)
        until = time.monotonic() + 5  # several times as long as the locks hold
        while time.monotonic() < until:
            [(expires,)] = site.rows("SELECT lock_expires_at FROM jobs WHERE id = ?", running[1])
            assert expires > time.time() - 0.5
            time.sleep(0.1)
        assert not site.event("lock_reclaimed")
        gate.touch()
        site.done(running[1])
    for job in [*waiting, *running]:
        site.done(job)
    site.verdict()
    assert not site.event("lock_reclaimed")


@pytest.mark.fault(92)
@pytest.mark.parametrize("how", ["the listener's session is ended", "nobody has notified"])
def test_a_job_that_nobody_was_told_of_is_found_soon(make_site: MakeSite, how: str) -> None:
    site = make_site(POOL)
    site.start()
    site.done(site.queue.enqueue("work"))
    with psycopg.connect(site.url, autocommit=True) as program:
        if how.startswith("nobody"):
            program.execute("SET session_replication_role = replica")
        else:
            ended = program.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND (query LIKE 'LISTEN%' OR query LIKE '%pg_current_snapshot%' OR query LIKE '%job_sleepers%')"
                " AND pid <> pg_backend_pid()"
            ).fetchall()
            assert ended
        began = time.time()
        [(job,)] = program.execute("INSERT INTO jobs (type, payload) VALUES ('work', '{}') RETURNING id")
    wait_for(lambda: site.runs("start", job), "it to begin")
    assert site.runs("start", job)[0][2] - began < patience(1.5)
    site.verdict(others=[job])


@pytest.mark.fault(93)
def test_a_server_that_has_become_read_only_is_waited_for(make_site: MakeSite, postgres: Databases) -> None:
    site = make_site(POOL)
    site.start()
    site.done(site.queue.enqueue("work"))
    name = psycopg.conninfo.conninfo_to_dict(site.url)["dbname"]

    def set_read_only(value: str) -> None:
        with psycopg.connect(postgres.dsn, autocommit=True) as operator:
            operator.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
        postgres.kill_backends(site.url)

    set_read_only("on")
    wait_for(lambda: [e for e in site.events() if e.get("event") == "store_failed" and "read-only" in e["error"]], "")
    with pytest.raises(StoreUnavailable, match="read-only"):
        site.queue.enqueue("work")
    with psycopg.connect(postgres.dsn, autocommit=True) as operator:  # and no session is ended
        operator.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    wait_for(lambda: site.event("store_recovered"), "it to be noticed")
    later = wait_for(lambda: _enqueued(site.queue), "the queue to work again")
    site.done(later)
    site.verdict()


def _enqueued(queue: Queue) -> int | None:
    with contextlib.suppress(StoreUnavailable):
        return queue.enqueue("work")
    return None
