"""What workers do for each job uses indexes, whatever the planner knows of the table: counted, not explained, because
the statements are inside functions.
"""

from __future__ import annotations

import time

import psycopg
import pytest

from supervisor.domain.job import NewJob
from supervisor.domain.settlement import Settlement, done, failed, released
from supervisor.store.base import Engine, JobSelector
from tests.store.kit import BROKEN, LOCK, POLICY, Desk, until
from tests.store.postgres.statistics import FLUSH, sessions

FULL = "INSERT INTO jobs (type, status, completed_at) SELECT 'tag', 'done', 1 FROM generate_series(1, 20000)"
PENDING = (
    "INSERT INTO jobs (type, priority, requires)"
    " SELECT 'tag', n % 3, CASE n % 2 WHEN 0 THEN 'gpu' ELSE '' END FROM generate_series(1, 700) AS n"
)
STATES = {
    "analysed while empty": ("ANALYZE jobs", FULL, PENDING),
    "never analysed": (FULL, PENDING),
    "analysed while full": (FULL, PENDING, "ANALYZE jobs"),
    "analysed while full, then emptied": (FULL, "ANALYZE jobs", "DELETE FROM jobs", PENDING),
    "analysed while small": (PENDING, "ANALYZE jobs", FULL),
}


@pytest.mark.parametrize("state", STATES)
def test_claims_settlements_and_counts_never_read_the_whole_table(
    state: str, desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    foreign.execute("ALTER TABLE jobs SET (autovacuum_enabled = off)")
    for statement in STATES[state]:
        foreign.execute(statement)
    foreign.execute(FLUSH)

    def scans() -> tuple[int, int, int]:
        """Of the table, and the uses of two indexes."""
        row = foreign.execute(
            "SELECT seq_scan, (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_pending'),"
            " (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_pkey')"
            " FROM pg_stat_user_tables WHERE relname = 'jobs'"
        ).fetchone()
        assert row is not None
        return row

    before, others, wanted = scans(), sessions(foreign), JobSelector(("tag",), "gpu")
    claims, maintenance, producer = engine.claims(), engine.maintenance(), engine.producer(create=False)
    settled: list[Settlement] = []
    for want in (1, 64, 500, 1, 5, 0):
        found = claims.settle_and_claim("w1", settled, wanted, want, LOCK, time.time()).claims
        assert len(found) == want
        assert maintenance.backlog.depth(wanted, time.time(), 10).due == 10
        assert len(maintenance.locks.held_by("w1")) == want
        assert maintenance.locks.renew(["w1"], 0.0, 0.0) == 0
        settled = [done(claim, '"ok"') for claim in found]
        if want == 5:
            settled[:2] = [released(found[0]), failed(found[1], BROKEN, POLICY, chance=0.5)]
    for priority in (0, 1, 2):
        producer.put(NewJob("tag", "{}", priority=priority, max_waiting=1000))
    for opened in (claims, maintenance, producer):
        opened.close()
    until(lambda: sessions(foreign) == others)

    after = scans()
    assert after[1] > before[1] + 10
    assert after[2] > before[2]
    assert after[0] == before[0]
