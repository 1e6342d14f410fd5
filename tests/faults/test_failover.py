"""The primary is lost, and a standby that has not received its latest commits takes its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from supervisor import Queue
from supervisor.domain.errors import JobNotFound, StoreError
from tests.ledger import Ledger
from tests.postgres_server import Home, Server
from tests.processes.test_hosts import Hosts
from tests.site_under_test import Site, wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.on_postgres]

PATIENCE = 90.0  # seconds
COUNT = "SELECT count(*) FROM jobs WHERE status IN ('pending', 'running')"
CONFIG = """
[pools.work]
handler = "jobs:work"
workers = 4
lock_time = "10m"
[[schedules]]
name = "often"
every = "1s"
type = "work"
payload = { seconds = 0 }
"""


@dataclass
class Pair:
    """A primary with a standby, and a database that is on both."""

    primary: Server
    standby: Server
    url: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.primary.fresh_database())
        other = urlsplit(self.standby.dsn)
        both = f"{parts.netloc},{other.hostname}:{other.port}"
        self.url = parts._replace(netloc=both, query="target_session_attrs=read-write").geturl()

    def _on_standby(self, *statements: str) -> list[tuple[object, ...]]:
        name = urlsplit(self.url).path
        with psycopg.connect(urlsplit(self.standby.dsn)._replace(path=name).geturl(), autocommit=True) as raw:
            for statement in statements:
                found = raw.execute(statement)
            return found.fetchall() if found.description else []

    def cut(self) -> None:
        """From now on the standby receives nothing; what has been committed so far it has."""
        with psycopg.connect(self.primary.dsn) as raw:
            [(here,)] = raw.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        there = f"SELECT pg_last_wal_replay_lsn() >= '{here}'"
        wait_for(lambda: self._on_standby(there) == [(True,)], "the standby to have everything")
        self._on_standby("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        receives = "SELECT count(*) FROM pg_stat_wal_receiver"
        wait_for(lambda: self._on_standby(receives) == [(0,)], "the standby to be cut off")

    def promote(self) -> None:
        assert self._on_standby("SELECT pg_promote()") == [(True,)]


@pytest.fixture
def pair(postgres_home: Home) -> Iterator[Pair]:
    primary = postgres_home.server()
    standby = postgres_home.standby(primary)
    yield Pair(primary, standby)
    for server in (primary, standby):
        server.remove()


def persist(queue: Queue, payload: object = None) -> int:
    """Enqueue as soon as there is a server."""

    def attempt() -> int:
        try:
            return queue.enqueue("work", payload or {})
        except StoreError:
            return 0

    return wait_for(attempt, "a server", PATIENCE)


@pytest.mark.timeout(600)
@pytest.mark.fault(95)
@pytest.mark.parametrize("away", [0, 20])
def test_after_a_failover_that_loses_commits_each_job_that_is_left_ends_once(
    pair: Pair,
    make_site: Callable[..., Site],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    away: int,
) -> None:
    """`away` is for how many seconds there is no server; leases end after 15."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    hosts, gate, other_gate = Hosts(make_site(CONFIG, url=pair.url), tmp_path), tmp_path / "gate", tmp_path / "other"
    site, queue = hosts.site, hosts.site.queue
    processes = [hosts.start(name) for name in ("one", "two")]
    kept = [queue.enqueue("work", {"seconds": 0.02}) for _ in range(40)]
    throughout = queue.enqueue("work", {"until": str(gate)})  # claimed before the cut
    settled = queue.enqueue("work", {"until": str(other_gate)})  # claimed before, settled after it
    claimed = queue.enqueue("work", {"until": str(gate)}, delay="2s")  # claimed after it
    wait_for(lambda: site.count("done") > 40, "the first to be done", PATIENCE)
    for job in (throughout, settled):
        site.running_pid(job)
    pair.cut()
    other_gate.touch()
    site.done(settled)
    site.running_pid(claimed)
    lost = [queue.enqueue("work", {"seconds": 0.02}) for _ in range(60)]
    running = queue.enqueue("work", {"until": str(gate)})  # nobody will know of it
    site.running_pid(running)
    wait_for(lambda: all(site.runs("end", job) for job in lost), "the lost ones to have run", PATIENCE)

    pair.primary.stop("immediate")
    time.sleep(away)
    pair.promote()
    later = [persist(queue, {"seconds": 0.02}) for _ in range(80)]
    before = of_schedule(site)
    gate.touch()
    left = [*kept, *later, throughout, settled, claimed]
    wait_for(lambda: site.rows(f"{COUNT} AND id = ANY (?)", left) == [(0,)], "all to end", PATIENCE)
    wait_for(lambda: len(of_schedule(site) - before) >= 3, "the schedule to go on", PATIENCE)
    wait_for(lambda: site.count("running") == 0, "nothing to be held for ever", PATIENCE)
    assert min(later) > max(*lost, running)  # their ids are nobody else's
    for job in (*lost, running):
        with pytest.raises(JobNotFound):
            queue.job(job)
    for process in processes:
        assert site.stop(process) == 0
    others, waiting = of_schedule(site), {row[0] for row in site.rows("SELECT id FROM jobs WHERE status = 'pending'")}
    gone = set(Ledger(site.ledger, site.where).tokens("start")) - others - queue.acknowledged  # those of the schedule
    every = queue.acknowledged | others | gone
    site.verdict(hit=every, others=others, pending=others & waiting, gone=[*lost, running, *gone])
    assert site.rows("SELECT sum(crashes) FROM jobs") == [(0,)]
    assert not site.event("supervisor_recovered")


def of_schedule(site: Site) -> set[int]:
    return {row[0] for row in site.rows("SELECT id FROM jobs WHERE payload = '{\"seconds\":0}'")}
