"""Every statement of everything that a role can do fails in turn: before it, after it, and at begin and commit.

In one process, on a copy of one database for each place; the role is used again afterwards, as a worker and the
maintainer do. tests/store/deeds.py has the deeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.failing import OTHERS
from supervisor.system import failpoints
from supervisor.system.failpoints import VARIABLE
from tests.store.deeds import DEEDS, ROLES, Deed, contents, make_world

KINDS = ["busy", "error", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("integrity", "full"))]
NEVER = "*=fail:busy@1000000"
# Statements that no deed runs, with the test that does.
ELSEWHERE = {
    "count_jobs": "tests/cli/test_restore.py",
    "set_meta": "test_a_migration_can_be_tried_again",
    "tables": "test_a_migration_can_be_tried_again",
    "has_column": "test_a_migration_can_be_tried_again",
    "make_epoch": "test_a_migration_can_be_tried_again",
    "named_parts": "tests/store/sqlite/test_damage_check.py",
    "parts": "tests/store/sqlite/test_damage_check.py",
    "whole_backlog": "tests/store/sqlite/test_many_kinds.py, where there are thousands of kinds",
    "job_meta": "tests of ctx.meta, which has a connection for itself",
    "job_status": "tests/queue/test_operating.py, where a cancel is refused",
    "definition": "tests/store/sqlite/test_adopt.py",
    "set_aside": "the claims here, where a row is refused",
    "note_set_aside": "the claims here, where a row is refused",
    "pending_token": "the claims here, where a row is refused",
    "payloads": "tests/store/sqlite/test_files.py, where a trigger inserts rows in between",
    "unique_rules": "tests/queue/test_groups.py, where a rule of the application suppresses a job",
    "to_renew": "the renewal here, where a row is refused",
    "renew_one": "the renewal here, where a row is refused",
    "open": "test_a_role_whose_opening_fails_leaves_nothing_behind",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(open_engine(f"sqlite:///{folder}/jobs.db"))
    return folder / "jobs.db"


class Trial:
    """A deed on a fresh copy of the world."""

    def __init__(self, deed: Deed, world: Path, folder: Path) -> None:
        folder.mkdir()
        shutil.copy(world, folder / "jobs.db")
        self.deed = deed
        self.engine: Engine = open_engine(f"sqlite:///{folder}/jobs.db")
        self._lock = folder / "jobs.db-supervisor" / "write.lock"
        arm(NEVER)
        self.role = ROLES[deed.role](self.engine)

    def act(self, points: str = NEVER) -> Any:
        arm(points)
        try:
            return self.deed.act(self.role)
        finally:
            arm(NEVER)

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        return contents(self.engine)

    def is_free(self) -> bool:
        """Whether everybody else may write: no transaction is open, and the writers' lock is not held."""
        path = self.engine.url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with self._lock.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    def close(self) -> None:
        self.role.close()


def arm(points: str) -> None:
    os.environ[VARIABLE] = points
    failpoints._armed.cache_clear()


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    before = os.environ.pop(VARIABLE, None)
    yield
    os.environ.pop(VARIABLE, None)
    if before is not None:
        os.environ[VARIABLE] = before
    failpoints._armed.cache_clear()


def passed(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Any]:
    """The places that an undisturbed deed passes, in their order, and what it returns."""
    places = []
    reach = failpoints.reach

    def noting(place: str, *error: Any) -> None:
        places.append(place)
        reach(place, *error)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", noting)
        answer = trial.act()
    return places, answer


@pytest.mark.fault(70, 71)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "deed",
    DEEDS,
    ids=lambda deed: f"{deed.role}: {deed.name}",
)
def test_whichever_statement_fails_the_deed_can_be_done_afterwards(
    deed: Deed, kind: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = Trial(deed, world, tmp_path / "undisturbed")
    untouched = undisturbed.contents()
    places, answer = passed(undisturbed, monkeypatch)
    done = undisturbed.contents()
    undisturbed.close()
    last = max((at for at, place in enumerate(places) if place == "commit.before"), default=len(places))
    assert places
    for at, place in enumerate(places):
        trial = Trial(deed, world, tmp_path / f"{at}")
        told = None
        try:
            trial.act(f"*=fail:{kind}@{at + 1}")
        except StoreError as error:
            told = error
        where = f"{at}: {place}, told {told!r}"
        assert told is None or isinstance(told, StoreBusy) == (kind == "busy"), where
        assert trial.is_free(), where
        if kind == "integrity" and not told:
            trial.act()  # what a trigger refuses may be answered in the same transaction, by another end
        elif kind == "busy" and not told:
            pass  # it was asked again until it succeeded
        elif at <= last:
            if places.count("begin") == 1 and at >= places.index("begin.before") and told:
                assert trial.contents() == untouched, where
            assert trial.act() == answer, where
        elif deed.repeatable:
            trial.act()
        if kind != "integrity" or told:
            assert trial.contents() == done, where
        trial.close()


@pytest.mark.fault(70, 71)
def test_jobs_that_may_have_been_committed_are_not_put_again(world: Path, tmp_path: Path) -> None:
    deed = Deed("put each", "producer", lambda role: role.put_each([NewJob("new", "{}"), NewJob("new", "{}")]))
    trial = Trial(deed, world, tmp_path / "trial")
    with pytest.raises(StoreError):
        trial.act("insert_job.committed=fail:error")
    producer = trial.engine.producer()
    assert ("new", "pending", 2) in producer.operations.statistics.counts()
    producer.close()
    trial.close()


@pytest.mark.fault(70, 71)
def test_every_statement_is_one_of_some_deed(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[str] = set()
    for number, deed in enumerate(DEEDS):
        trial = Trial(deed, world, tmp_path / f"{number}")
        reached |= {place.partition(".")[0] for place in passed(trial, monkeypatch)[0]}
        trial.close()
    assert sorted({*QUERIES.statements, *OTHERS.values()} - reached) == sorted(ELSEWHERE)


@pytest.mark.fault(71)
@pytest.mark.parametrize("kind", ["busy", "full", "error"])
def test_a_migration_can_be_tried_again(kind: str, tmp_path: Path) -> None:
    arm(NEVER)
    for at in range(1, 1000):
        engine = open_engine(f"sqlite:///{tmp_path}/{at}.db")
        arm(f"*=fail:{kind}@{at}")
        try:
            engine.database.migrate()
            failed = False
        except StoreError:
            failed = True
        arm(NEVER)
        engine.database.migrate()
        producer = engine.producer()
        assert producer.enqueue([NewJob("tag", "{}")]) == [1]
        producer.close()
        if not failed:
            assert at > 10
            return


@pytest.mark.fault(70, 71)
@pytest.mark.parametrize("kind", ["busy", "full", "error"])
@pytest.mark.parametrize("role", ROLES)
def test_a_role_whose_opening_fails_leaves_nothing_behind(role: str, kind: str, world: Path) -> None:
    before = descriptors()
    arm(f"open.before=fail:{kind}*9;open=fail:{kind}*9")
    for _ in range(3):
        with pytest.raises(StoreError):
            ROLES[role](open_engine(f"sqlite:///{world}"))
    if descriptors() != before:
        gc.collect()
        assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
