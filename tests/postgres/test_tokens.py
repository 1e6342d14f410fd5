"""A crash of the server may undo claims; a token that was told is never given again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from supervisor.domain.job import Claim, NewJob
from supervisor.domain.settlement import released
from supervisor.engine import open_engine
from supervisor.store.base import Engine, JobSelector
from tests.postgres_server import Databases, Server

WANTED = JobSelector(("tag",))


def claim(engine: Engine) -> Claim | None:
    claims = engine.claims()
    claimed = claims.settle_and_claim("w1", [], WANTED, 1, 60.0, time.time()).claims
    claims.close()
    return claimed[0] if claimed else None


def test_after_a_crash_tokens_are_higher_than_before(
    own_postgres: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server = own_postgres(wal_writer_delay="10s")  # so that the claim is surely lost
    engine = open_engine(server.fresh_database())
    producer = engine.producer()
    producer.enqueue([NewJob("tag", "{}")])
    producer.close()
    tokens = []
    for mode in ("fast", "immediate", "immediate"):
        claimed = claim(engine)
        assert claimed is not None
        tokens.append(claimed.token)
        if mode == "fast":  # nothing is lost, and nothing else changes
            with_claims = engine.claims()
            with_claims.settle_and_claim("w1", [released(claimed)], JobSelector(()), 0, 60.0, time.time())
            with_claims.close()
        server.restart(mode)
    last = claim(engine)
    if last is not None:  # the claim before the last crash waited for the disk, because it was the first after one
        tokens.append(last.token)
    assert tokens[:2] == [1, 3]
    assert tokens == sorted(set(tokens))
    assert tokens[2] > 1 << 32


def test_a_standby_that_lacks_the_latest_floor_gives_no_token_twice(
    postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = postgres.fresh_database()
    engine = open_engine(url)
    producer = engine.producer()
    producer.enqueue([NewJob("tag", "{}")])
    producer.close()
    tokens = []
    with psycopg.connect(url, autocommit=True) as raw:
        for _ in range(2):  # a crash, and a failover to what does not know of it
            raw.execute("DELETE FROM job_since_crash; SELECT setval('job_token_floor', 0)")
            raw.execute("UPDATE jobs SET status = 'pending', locked_by = NULL, claim_token = 0")
            claimed = claim(engine)
            assert claimed is not None
            tokens.append(claimed.token)
    assert tokens[0] < tokens[1] < 2**53
